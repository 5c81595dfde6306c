// The languages that speech models may know. A model that does not know one says so.

const CODES = "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr "
  + "ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc "
  + "pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue "
  + "zh";

/** Names that browsers may lack. */
const NAMES = { ba: "Bashkir", bo: "Tibetan" };

/** What a language is called. */
export function languageName(code) {
  if (NAMES[code]) return NAMES[code];
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

/** Codes and names, by their names. */
export const languages = () => CODES.split(" ").map((code) => ({ code, name: languageName(code) }))
  .sort((a, b) => a.name.localeCompare(b.name, "en"));
