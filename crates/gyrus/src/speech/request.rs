use super::tokens::Task;

/// What to write, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechRequest {
    /// The language that is spoken, by its code or English name. It is detected in the first window if absent.
    pub language: Option<String>,
    /// Transcription, or translation to English.
    pub task: Task,
    /// Whether segments have times. Without them, each window is one segment.
    pub timestamps: bool,
    /// Whether words have times.
    pub words: bool,
    /// Beams of the search; 1 is greedy.
    pub beams: usize,
    /// The search ends when `beams · patience` hypotheses are complete.
    pub patience: f32,
    /// Samples of which the best is taken at temperatures above 0.
    pub samples: usize,
    /// Temperatures that are tried in turn until the text is plausible.
    pub temperatures: Vec<f32>,
    /// A text whose compression ratio is larger repeats itself, so that the next temperature is tried.
    pub compression_limit: Option<f64>,
    /// A text whose mean log-probability is lower is not plausible, so that the next temperature is tried.
    pub probability_limit: Option<f64>,
    /// A window whose probability of no speech is larger, and whose text is not plausible, is silent.
    pub no_speech_limit: Option<f64>,
    /// Whether the text of a window is a prompt of the next.
    pub previous_text: bool,
    /// A text that the first window follows: names and terms in their spelling.
    pub initial_prompt: Option<String>,
    /// Whether tokens of sounds and speakers, such as brackets and notes, are suppressed.
    pub suppress_non_speech: bool,
    /// Whether parts without speech are left out, by their energy, and the others decoded side by side.
    pub voice_activity: bool,
    /// The seed of samples.
    pub seed: u64,
}

impl Default for SpeechRequest {
    fn default() -> SpeechRequest {
        SpeechRequest {
            language: None,
            task: Task::Transcribe,
            timestamps: true,
            words: false,
            beams: 1,
            patience: 1.0,
            samples: 5,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            compression_limit: Some(2.4),
            probability_limit: Some(-1.0),
            no_speech_limit: Some(0.6),
            previous_text: true,
            initial_prompt: None,
            suppress_non_speech: true,
            voice_activity: false,
            seed: 0,
        }
    }
}
