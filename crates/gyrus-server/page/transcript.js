// What is said, as text and as subtitles. They have the bytes of the server's own formats, so that a recording is not
// transcribed once more for each.

/** All segments as one text. */
export const plain = (segments) => segments.map(({ text }) => text).join("").trim();

/** What can be saved: the ending of a file, its type, and its content. */
export const FORMATS = {
  txt: { type: "text/plain", write: (segments) => `${plain(segments)}\n` },
  srt: { type: "application/x-subrip", write: srt },
  vtt: { type: "text/vtt", write: vtt },
};

/** A time for readers: `0:01.5`, `1:02:03.4`. */
export function shortTime(seconds) {
  const tenths = Math.round(seconds * 10);
  const hour = Math.floor(tenths / 36_000);
  const minute = Math.floor(tenths / 600) % 60;
  const rest = `${String(Math.floor(tenths / 10) % 60).padStart(2, "0")}.${tenths % 10}`;
  return hour > 0 ? `${hour}:${String(minute).padStart(2, "0")}:${rest}` : `${minute}:${rest}`;
}

function srt(segments) {
  const cues = segments.map((segment, at) =>
    `${at + 1}\n${clock(segment.start, ",", true)} --> ${clock(segment.end, ",", true)}\n${cue(segment)}\n\n`);
  return cues.join("");
}

function vtt(segments) {
  const cues = segments.map((segment) =>
    `${clock(segment.start, ".", false)} --> ${clock(segment.end, ".", false)}\n${cue(segment)}\n\n`);
  return `WEBVTT\n\n${cues.join("")}`;
}

/** The text of a subtitle. An arrow or an empty line would end it. */
const cue = ({ text }) => text.trim().replace(/[\n\v\f\r\u0085\u2028\u2029]/g, " ").replaceAll("-->", "->");

/** `01:02:03,456`; the hours may be left out if there are none. */
function clock(seconds, point, hours) {
  const all = Math.round(Math.max(seconds, 0) * 1000);
  const digits = (number, count) => String(number).padStart(count, "0");
  const [hour, minute] = [Math.floor(all / 3_600_000), Math.floor(all / 60_000) % 60];
  const second = `${digits(Math.floor(all / 1000) % 60, 2)}${point}${digits(all % 1000, 3)}`;
  const rest = `${digits(minute, 2)}:${second}`;
  return hours || hour > 0 ? `${digits(hour, 2)}:${rest}` : rest;
}
