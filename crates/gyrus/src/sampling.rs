//! The default sampling parameters in a model's files.

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::Metadata;
use gyrus_kernels::Sampler;
use serde_json::Value;

use crate::Error;

/// The default sampling parameters in a model's files. Parameters that the files do not set are `None`.
///
/// They come from the `general.sampling.*` keys of a GGUF file, or from the `generation_config.json` of a SafeTensors
/// model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// As [`Sampler::temperature`].
    pub temperature: Option<f32>,
    /// As [`Sampler::top_k`].
    pub top_k: Option<u32>,
    /// As [`Sampler::top_p`].
    pub top_p: Option<f32>,
    /// As [`Sampler::min_p`].
    pub min_p: Option<f32>,
    /// As [`Sampler::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// As [`Sampler::penalty_window`].
    pub penalty_window: Option<u32>,
}

impl Sampling {
    /// Whether the files set no parameter.
    pub fn is_empty(&self) -> bool {
        *self == Sampling::default()
    }

    pub(crate) fn read(checkpoint: &Checkpoint) -> Result<Sampling, Error> {
        let (place, sampling) = match (checkpoint.gguf(), checkpoint.generation_config()) {
            (Some(metadata), _) => ("general.sampling", gguf(metadata)?),
            (None, Some(config)) => ("generation_config.json", hugging_face(config)?),
            (None, None) => return Ok(Sampling::default()),
        };
        let neutral = Sampler::default();
        let sampler = Sampler {
            temperature: sampling.temperature.unwrap_or(neutral.temperature),
            top_p: sampling.top_p.unwrap_or(neutral.top_p),
            min_p: sampling.min_p.unwrap_or(neutral.min_p),
            repetition_penalty: sampling.repetition_penalty.unwrap_or(neutral.repetition_penalty),
            ..neutral
        };
        sampler.validate().map_err(|source| Error::Sampling { place, source })?;
        Ok(sampling)
    }
}

fn gguf(metadata: Metadata<'_>) -> Result<Sampling, Error> {
    let key = |name: &str| format!("general.sampling.{name}");
    // Some converters write whole numbers as integers.
    let number = |name: &str| -> Result<Option<f32>, Error> {
        match metadata.get::<i64>(&key(name)) {
            Ok(whole) => Ok(whole.map(|n| n as f32)),
            Err(_) => Ok(metadata.get::<f32>(&key(name))?),
        }
    };
    // A negative count means no limit.
    let count = |name: &str| metadata.get::<i64>(&key(name));
    let last = count("penalty_last_n")?;
    Ok(Sampling {
        temperature: number("temp")?.map(|t| t.max(0.0)),
        top_k: count("top_k")?.map(|k| u32::try_from(k.max(0)).unwrap_or(u32::MAX)),
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repetition_penalty: number("penalty_repeat")?,
        penalty_window: last.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
    })
}

fn hugging_face(config: &Value) -> Result<Sampling, Error> {
    let place = "generation_config.json";
    let wrong = |name: &str, expected: &str| Error::Setting(format!("{place}: '{name}' is not {expected}"));
    let field = |name: &str| config.get(name).filter(|value| !value.is_null());
    let number = |name: &str| match field(name) {
        Some(value) => value.as_f64().map(|n| Some(n as f32)).ok_or_else(|| wrong(name, "a number")),
        None => Ok(None),
    };
    let top_k = match field("top_k") {
        Some(value) => Some(value.as_i64().ok_or_else(|| wrong("top_k", "an integer"))?),
        None => None,
    };
    // `do_sample: false` is greedy decoding, whatever the temperature.
    let greedy = field("do_sample").and_then(Value::as_bool) == Some(false);
    Ok(Sampling {
        temperature: if greedy { Some(0.0) } else { number("temperature")? },
        top_k: top_k.map(|k| u32::try_from(k.max(0)).unwrap_or(u32::MAX)),
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repetition_penalty: number("repetition_penalty")?,
        penalty_window: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_formats::Bytes;
    use gyrus_formats::gguf::Writer;
    use gyrus_testkit::tempfile;

    fn from_gguf(fill: impl FnOnce(&mut Writer)) -> Result<Sampling, Error> {
        let mut writer = Writer::new();
        fill(&mut writer);
        let mut file = Vec::new();
        writer.write_to(&mut file).unwrap();
        Sampling::read(&Checkpoint::from_gguf("m.gguf", Bytes::Owned(file)).unwrap())
    }

    fn beside_safetensors(config: Option<&str>) -> Result<Sampling, Error> {
        let folder = tempfile::tempdir().unwrap();
        let header = br#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        if let Some(config) = config {
            std::fs::write(folder.path().join("generation_config.json"), config).unwrap();
        }
        Sampling::read(&Checkpoint::open(folder.path()).unwrap())
    }

    #[test]
    fn gguf_keys_are_those_of_llama_cpp() {
        let found = from_gguf(|w| {
            w.f32("general.sampling.temp", 0.6).u32("general.sampling.top_k", 20);
            w.f32("general.sampling.top_p", 0.95).f32("general.sampling.min_p", 0.0);
            w.f32("general.sampling.penalty_repeat", 1.05).u32("general.sampling.penalty_last_n", 128);
        });
        let expected = Sampling {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
            penalty_window: Some(128),
        };
        assert_eq!(found.unwrap(), expected);
        assert!(from_gguf(|_| {}).unwrap().is_empty());
        let whole = from_gguf(|w| {
            w.u32("general.sampling.temp", 1);
        });
        assert_eq!(whole.unwrap().temperature, Some(1.0));
    }

    #[test]
    fn generation_config_is_read() {
        let config = r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8,
                         "repetition_penalty": 1.05, "eos_token_id": [1, 2], "min_p": null}"#;
        let found = beside_safetensors(Some(config)).unwrap();
        assert_eq!((found.temperature, found.top_k, found.top_p), (Some(0.7), Some(20), Some(0.8)));
        assert_eq!((found.min_p, found.repetition_penalty), (None, Some(1.05)));
        let greedy = beside_safetensors(Some(r#"{"do_sample": false, "temperature": 0.7}"#)).unwrap();
        assert_eq!(greedy.temperature, Some(0.0));
        assert!(beside_safetensors(Some("{}")).unwrap().is_empty());
        assert!(beside_safetensors(None).unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_invalid_parameter() {
        let error = |result: Result<Sampling, Error>| result.unwrap_err().to_string();
        let wide = from_gguf(|w| {
            w.f32("general.sampling.top_p", 2.0);
        });
        assert_eq!(error(wide), "general.sampling: top-p is 2, it must be above 0 and at most 1");
        assert_eq!(
            error(beside_safetensors(Some(r#"{"temperature": "hot"}"#))),
            "generation_config.json: 'temperature' is not a number"
        );
        let hot = from_gguf(|w| {
            w.string("general.sampling.temp", "hot");
        });
        assert!(error(hot).contains("general.sampling.temp"));
    }
}
