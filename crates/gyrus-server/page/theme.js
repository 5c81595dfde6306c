// Sets the theme before anything is drawn. A classic script, since modules run after the first paint.
(() => {
  try {
    const theme = localStorage.getItem("gyrus.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Without storage the system's theme is used.
  }
})();
