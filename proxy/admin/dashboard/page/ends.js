// What the codes mean with which connections end: asked for once, from the one
// list that usher has.

import { get } from './api.js';

// ends has the API's End by its code.
export const ends = new Map();

export async function loadEnds() { for (const end of (await get('ends')).items) ends.set(end.code, end); }
