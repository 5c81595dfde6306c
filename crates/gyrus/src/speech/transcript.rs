use std::fmt::Write;

use super::alignment::Word;

/// A part of a recording with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// When it begins, in seconds.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// The text, usually with a space before it.
    pub text: String,
    /// Token ids, timestamps included.
    pub tokens: Vec<u32>,
    /// The words, if they were asked for.
    pub words: Vec<Word>,
    /// The beginning of its window, in frames of 10 ms.
    pub seek: usize,
    /// The temperature of its window.
    pub temperature: f32,
    /// The mean log-probability of its window's tokens.
    pub mean_log_probability: f64,
    /// How well its window's text can be compressed.
    pub compression_ratio: f64,
    /// The probability that its window has no speech.
    pub no_speech_probability: f64,
}

/// The text of a recording.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transcript {
    /// The code of its language.
    pub language: String,
    /// Length of the recording in seconds.
    pub duration: f64,
    /// Its segments in order.
    pub segments: Vec<Segment>,
}

impl Transcript {
    /// All segments as one text.
    pub fn text(&self) -> String {
        self.segments.iter().map(|segment| segment.text.as_str()).collect::<String>().trim().to_owned()
    }

    /// With a segment for each word, so that every format has a line, a row or a cue for each. Segments without words, as
    /// all are unless they were asked for, stay whole.
    pub fn by_words(&self) -> Transcript {
        let segments = self.segments.iter().flat_map(Segment::by_words).collect();
        Transcript { segments, language: self.language.clone(), duration: self.duration }
    }

    /// A line for each segment.
    pub fn to_txt(&self) -> String {
        self.segments.iter().map(|segment| format!("{}\n", segment.line())).collect()
    }

    /// SubRip subtitles.
    pub fn to_srt(&self) -> String {
        let mut out = String::new();
        for (n, segment) in self.segments.iter().enumerate() {
            let (start, end) = (clock(segment.start, ',', true), clock(segment.end, ',', true));
            // Writing to a string does not fail.
            let _ = write!(out, "{}\n{start} --> {end}\n{}\n\n", n + 1, cue(segment));
        }
        out
    }

    /// WebVTT subtitles.
    pub fn to_vtt(&self) -> String {
        let mut out = String::from("WEBVTT\n\n");
        for segment in &self.segments {
            let (start, end) = (clock(segment.start, '.', false), clock(segment.end, '.', false));
            let _ = write!(out, "{start} --> {end}\n{}\n\n", cue(segment));
        }
        out
    }

    /// Tab-separated values: start and end in milliseconds, and the text.
    pub fn to_tsv(&self) -> String {
        let mut out = String::from("start\tend\ttext\n");
        for segment in &self.segments {
            let text = segment.line().replace('\t', " ");
            let _ = writeln!(out, "{}\t{}\t{text}", millis(segment.start), millis(segment.end));
        }
        out
    }

    /// The form of OpenAI's `verbose_json`.
    pub fn to_json(&self) -> serde_json::Value {
        let segments = self.segments.iter().enumerate().map(|(id, segment)| segment.to_json(id));
        serde_json::json!({
            "language": self.language,
            "duration": rounded(self.duration),
            "text": self.text(),
            "segments": segments.collect::<Vec<_>>(),
        })
    }
}

impl Segment {
    /// The text as one line.
    pub fn line(&self) -> String {
        let ends_line = |c| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        self.text.trim().replace(ends_line, " ")
    }

    /// A segment for each of its words, or it alone if it has none.
    pub fn by_words(&self) -> Vec<Segment> {
        if self.words.is_empty() {
            return vec![self.clone()];
        }
        let of_word = |word: &Word| Segment {
            start: word.start,
            end: word.end,
            text: word.text.clone(),
            tokens: Vec::new(),
            words: vec![word.clone()],
            ..*self
        };
        self.words.iter().map(of_word).collect()
    }

    /// As an object with this number.
    pub fn to_json(&self, id: usize) -> serde_json::Value {
        let mut object = serde_json::json!({
            "id": id,
            "seek": self.seek,
            "start": rounded(self.start),
            "end": rounded(self.end),
            "text": self.text,
            "tokens": self.tokens,
            "temperature": rounded(f64::from(self.temperature)),
            "avg_logprob": self.mean_log_probability,
            "compression_ratio": self.compression_ratio,
            "no_speech_prob": self.no_speech_probability,
        });
        if !self.words.is_empty() {
            let words = self.words.iter().map(Word::to_json).collect();
            object["words"] = serde_json::Value::Array(words);
        }
        object
    }
}

impl Word {
    /// As an object.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "word": self.text,
            "start": rounded(self.start),
            "end": rounded(self.end),
            "probability": self.probability,
        })
    }
}

/// The text of a subtitle. An arrow or an empty line would end it.
fn cue(segment: &Segment) -> String {
    segment.line().replace("-->", "->")
}

fn millis(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1000.0).round() as u64
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// `01:02:03,456`; the hours may be left out if there are none.
fn clock(seconds: f64, point: char, hours: bool) -> String {
    let all = millis(seconds);
    let (hour, minute, second, milli) = (all / 3_600_000, all / 60_000 % 60, all / 1000 % 60, all % 1000);
    match hours || hour > 0 {
        true => format!("{hour:02}:{minute:02}:{second:02}{point}{milli:03}"),
        false => format!("{minute:02}:{second:02}{point}{milli:03}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |start, end, text: &str| Segment {
            start,
            end,
            text: text.to_owned(),
            tokens: vec![1],
            words: Vec::new(),
            seek: 0,
            temperature: 0.0,
            mean_log_probability: -0.25,
            compression_ratio: 1.0,
            no_speech_probability: 0.5,
        };
        let segments = vec![segment(0.0, 1.5, " Ask --> not."), segment(3661.0, 3662.25, " What\tnow?")];
        Transcript { language: "en".to_owned(), duration: 3700.0, segments }
    }

    #[test]
    fn every_format_has_times_and_text() {
        let t = transcript();
        assert_eq!(t.text(), "Ask --> not. What\tnow?");
        assert_eq!(t.to_txt(), "Ask --> not.\nWhat\tnow?\n");
        assert_eq!(
            t.to_srt(),
            "1\n00:00:00,000 --> 00:00:01,500\nAsk -> not.\n\n2\n01:01:01,000 --> 01:01:02,250\nWhat\tnow?\n\n"
        );
        assert_eq!(
            t.to_vtt(),
            "WEBVTT\n\n00:00.000 --> 00:01.500\nAsk -> not.\n\n01:01:01.000 --> 01:01:02.250\nWhat\tnow?\n\n"
        );
        assert_eq!(t.to_tsv(), "start\tend\ttext\n0\t1500\tAsk --> not.\n3661000\t3662250\tWhat now?\n");
        let json = t.to_json();
        assert_eq!(json["segments"][1]["end"], 3662.25);
        assert_eq!(json["segments"][0].get("words"), None);
    }

    #[test]
    fn words_are_cues_and_rows_of_their_own() {
        let mut t = transcript();
        let word = |text: &str, start, end| Word { text: text.to_owned(), start, end, probability: 0.5 };
        t.segments[0].words =
            vec![word(" Ask", 0.25, 0.5), word(" -->", 0.5, 0.75), word(" not.", 0.75, 1.5)];
        let words = t.by_words();
        assert_eq!(
            words.to_tsv(),
            "start\tend\ttext\n250\t500\tAsk\n500\t750\t-->\n750\t1500\tnot.\n3661000\t3662250\tWhat now?\n"
        );
        assert!(words.to_srt().starts_with(
            "1\n00:00:00,250 --> 00:00:00,500\nAsk\n\n2\n00:00:00,500 --> 00:00:00,750\n->\n\n"
        ));
        assert!(words.to_vtt().starts_with("WEBVTT\n\n00:00.250 --> 00:00.500\nAsk\n\n"));
        assert_eq!(words.text(), t.text());
        assert_eq!(transcript().by_words(), transcript());
    }

    #[test]
    fn a_text_of_several_lines_stays_one_row_and_one_cue() {
        let mut t = transcript();
        t.segments.truncate(1);
        t.segments[0].text = " Ask\n\n1\r\n00:00 \u{2028}not.\n".to_owned();
        assert_eq!(t.to_txt(), "Ask  1  00:00  not.\n");
        assert_eq!(t.to_srt(), "1\n00:00:00,000 --> 00:00:01,500\nAsk  1  00:00  not.\n\n");
        assert_eq!(t.to_vtt(), "WEBVTT\n\n00:00.000 --> 00:01.500\nAsk  1  00:00  not.\n\n");
        assert_eq!(t.to_tsv(), "start\tend\ttext\n0\t1500\tAsk  1  00:00  not.\n");
        assert_eq!(t.to_json()["segments"][0]["text"], t.segments[0].text);
    }
}
