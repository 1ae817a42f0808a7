// The colors: light or dark, as in the system's settings. This file is not a module:
// it runs before the page is first drawn, so that the page does not flash.
'use strict';
(() => {
  const choices = ['auto', 'light', 'dark'];

  function stored() {
    try {
      const choice = localStorage.getItem('usher-theme');
      return choices.includes(choice) ? choice : 'auto';
    } catch {
      return 'auto'; // the browser does not allow storage
    }
  }

  function apply(choice) {
    if (choice === 'auto') document.documentElement.removeAttribute('data-theme');
    else document.documentElement.dataset.theme = choice;
  }

  apply(stored());

  addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    let choice = stored();
    const label = () => { button.textContent = `Colors: ${choice}`; };
    label();
    button.addEventListener('click', () => {
      choice = choices[(choices.indexOf(choice) + 1) % choices.length];
      try { localStorage.setItem('usher-theme', choice); } catch { /* the choice lasts until the page is closed */ }
      apply(choice);
      label();
    });
  });
})();
