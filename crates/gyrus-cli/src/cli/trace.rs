//! Arguments of `gyrus trace`.

use std::ffi::OsString;
use std::str::FromStr;

use clap::{ArgGroup, Args};
use gyrus::{Device, Options, Precision};

use super::measure::{Ids, ids};
use crate::options::ModelArgs;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("tokens").required(true).args(["ids", "prompt"])))]
pub(crate) struct TraceArgs {
    /// A model file, folder or catalogue name
    pub(crate) model: OsString,

    /// Token ids, separated by spaces or commas
    #[arg(long, value_name = "IDS", value_parser = ids)]
    pub(crate) ids: Option<Ids>,

    /// A prompt to tokenize, without a chat template
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,

    /// Compare with another run: a device (cpu, gpu, gpu:NAME, reference), a precision (exact, fast), or both as in
    /// cpu,exact; what is not named is the same in both runs
    #[arg(long, value_name = "RUN")]
    pub(crate) against: Option<Against>,

    /// Rows of each batch; the last number repeats. A GPU has other kernels for 1 row (decode), up to 16, and more
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) chunk: Vec<u16>,

    /// Relative difference above which results diverge [default: by op and precision, 1e-4 for attention and for all of
    /// exact]
    #[arg(long, value_name = "X", requires = "against", value_parser = tolerance)]
    pub(crate) tolerance: Option<f32>,

    /// Let each run continue with its own results, so that differences add up. By default, if one run is not on a GPU, it
    /// takes over the results of the other, so that each op has the same inputs in both
    #[arg(long, requires = "against")]
    pub(crate) accumulate: bool,

    /// Print all batches, and do not stop at the first that diverges. By default only that one is printed, or the last
    #[arg(long)]
    pub(crate) all: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing but the results
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,
}

impl TraceArgs {
    /// Whether GPUs may be looked for.
    #[cfg(target_os = "linux")]
    pub(crate) fn may_use_gpu(&self) -> bool {
        let other = self.against.as_ref().and_then(|against| against.device.clone());
        let other = other.map(|device| ModelArgs { device, ..self.model_options.clone() });
        self.model_options.may_use_gpu() || other.is_some_and(|other| other.may_use_gpu())
    }
}

fn tolerance(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() && x >= 0.0 => Ok(x),
        _ => Err("a number from 0 on is needed".to_owned()),
    }
}

/// How the other run differs from this one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Against {
    pub(crate) device: Option<Device>,
    pub(crate) precision: Option<Precision>,
}

impl Against {
    /// The options of the other run.
    pub(crate) fn options(&self, ours: &Options) -> Options {
        Options {
            device: self.device.clone().unwrap_or_else(|| ours.device.clone()),
            precision: self.precision.unwrap_or(ours.precision),
            ..ours.clone()
        }
    }
}

impl FromStr for Against {
    type Err = String;

    fn from_str(text: &str) -> Result<Against, String> {
        let mut against = Against::default();
        for part in text.split(',') {
            let again = match part {
                "exact" => against.precision.replace(Precision::Exact).is_some(),
                "fast" => against.precision.replace(Precision::Fast).is_some(),
                device => {
                    let device = device.parse().map_err(|error| format!("{error}; or exact, or fast"))?;
                    against.device.replace(device).is_some()
                }
            };
            if again {
                return Err(format!("'{part}' is the second of its kind: name one device and one precision"));
            }
        }
        Ok(against)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_run_has_a_device_a_precision_or_both() {
        let parse = |text: &str| text.parse::<Against>();
        assert_eq!(parse("cpu"), Ok(Against { device: Some(Device::Cpu), precision: None }));
        assert_eq!(parse("exact"), Ok(Against { device: None, precision: Some(Precision::Exact) }));
        let both = Against { device: Some(Device::Reference), precision: Some(Precision::Fast) };
        assert_eq!((parse("reference,fast"), parse("fast,reference")), (Ok(both.clone()), Ok(both)));
        for text in ["", "tpu", "cpu,", "cpu,cpu", "exact,fast"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
