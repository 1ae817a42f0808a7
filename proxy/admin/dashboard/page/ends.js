// The meanings of end codes, requested once from usher's list.

import { get } from './api.js';

// ends maps codes to the API's End.
export const ends = new Map();

export async function loadEnds() { for (const end of (await get('ends')).items) ends.set(end.code, end); }
