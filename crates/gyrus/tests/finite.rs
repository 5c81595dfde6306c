//! What is not a number is an error, never an answer; and `fast` makes none of what `exact` computes.

mod adapter;
mod short_tales;
mod together;
mod written;

use gyrus::{Device, Error, Model, Options, Precision, Prompt, Request, Sampler, Session};
use gyrus_formats::Checkpoint;
use together::decode_together;

/// Q8_0: a scale and 32 elements.
const BLOCK: usize = 34;

fn devices() -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    #[cfg(feature = "gpu")]
    devices.extend(adapter::adapter().map(|name| Device::Gpu(Some(name))));
    devices
}

fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + 11) % short_tales::VOCAB).collect()
}

fn open(checkpoint: Checkpoint, device: &Device, precision: Precision) -> Model {
    let options =
        Options { device: device.clone(), precision, context: Some(256), sessions: 4, ..Options::default() };
    Model::load(checkpoint, &options).unwrap()
}

/// A model one of whose weights has a scale that is not a number.
fn damaged() -> Option<Checkpoint> {
    short_tales::changed(4, 0, |name, bytes| {
        if name == "blk.1.ffn_down.weight" {
            bytes[5 * BLOCK..5 * BLOCK + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
        }
    })
}

fn assert_not_finite(error: &Error, position: usize, what: &str) {
    assert!(matches!(error, Error::NotFinite { position: at, .. } if *at == position), "{what}: {error}");
    let said = error.to_string();
    assert!(
        said.starts_with(&format!("the model computed NaN or infinity at position {position}")),
        "{said}"
    );
}

/// Runs a request to its end.
fn run(session: &mut Session, request: Request) -> Result<(), Error> {
    let mut generation = session.generate(request)?;
    while generation.next()?.is_some() {}
    Ok(())
}

#[test]
fn nonsense_is_an_error_wherever_it_is_computed() {
    for device in devices() {
        for precision in [Precision::Exact, Precision::Fast] {
            let Some(checkpoint) = damaged() else { return };
            let model = open(checkpoint, &device, precision);
            let what = format!("{device} {precision:?}");
            for length in [1, 5, 40] {
                for (n, sampler) in [
                    Sampler::default(),
                    Sampler { temperature: 0.8, top_k: 40, ..Sampler::default() },
                    Sampler { temperature: 1.5, ..Sampler::default() },
                    Sampler { repetition_penalty: 1.2, ..Sampler::default() },
                ]
                .into_iter()
                .enumerate()
                {
                    for logprobs in [false, true] {
                        let mut session = model.session();
                        let request = Request::ids(ids(length))
                            .sampler(sampler.clone())
                            .logprobs(logprobs)
                            .max_tokens(4);
                        let error = run(&mut session, request).unwrap_err();
                        assert_not_finite(&error, length as usize - 1, &format!("{what}, sampler {n}"));
                        // What was there stays, and the same error comes again.
                        assert_eq!(session.tokens(), ids(length));
                        assert!(run(&mut session, Request::new(Prompt::Continue)).is_err());
                    }
                }
                let mut rows = 0;
                let error = model.session().score(&ids(length), |_, _| rows += 1).unwrap_err();
                assert_not_finite(&error, 0, &what);
                assert_eq!(rows, 0, "{what}");
            }
            let mut sessions = [model.session(), model.session()];
            sessions[0].set_tokens(&ids(3)).unwrap();
            sessions[1].set_tokens(&ids(7)).unwrap();
            let samplers = [Sampler::default(), Sampler::default()];
            let error = decode_together(&mut sessions, &samplers, 4, |_| true).unwrap_err();
            assert_not_finite(&error, 2, &what);
        }
    }
}

fn logits(model: &Model, ids: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    model.session().score(ids, |_, row| all.extend_from_slice(row)).unwrap();
    all
}

/// A multiple of every scale of a Q8_0 matrix.
fn scaled(bytes: &mut [u8], by: f32) {
    for block in bytes.chunks_exact_mut(BLOCK) {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32() * by;
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
    }
}

/// Values beyond the range of f16 do not become infinite in the cache: they saturate.
#[test]
fn the_f16_cache_saturates() {
    for which in ["attn_v", "attn_k_norm"] {
        let large = || {
            short_tales::changed(4, 0, |name, bytes| {
                if name == "blk.0.attn_v.weight" && which == "attn_v" {
                    scaled(bytes, 1e5);
                } else if name == "blk.0.attn_k_norm.weight" && which == "attn_k_norm" {
                    for value in bytes.chunks_exact_mut(4) {
                        let large = 1e6 * f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                        value.copy_from_slice(&large.to_le_bytes());
                    }
                }
            })
        };
        for device in devices() {
            let (Some(exact), Some(fast)) = (large(), large()) else { return };
            let exact = open(exact, &device, Precision::Exact);
            let fast = open(fast, &device, Precision::Fast);
            // One row, few rows, many rows.
            for length in [1, 9, 40] {
                assert!(logits(&exact, &ids(length)).iter().all(|v| v.is_finite()));
                assert!(
                    logits(&fast, &ids(length)).iter().all(|v| v.is_finite()),
                    "{which} {device} {length}"
                );
            }
            let mut session = fast.session();
            run(&mut session, Request::ids(ids(20)).max_tokens(4).ignore_end(true)).unwrap();
            assert_eq!(session.tokens().len(), 24);
        }
    }
}

/// A GPU multiplies prompts by weights in f16, unless they are beyond its range: those it multiplies in f32.
#[test]
fn weights_beyond_f16_are_multiplied_in_f32() {
    let large = || {
        short_tales::changed(4, 0, |name, bytes| {
            if name == "blk.0.ffn_up.weight" {
                // The largest of 127 steps is beyond f16 in some blocks.
                scaled(bytes, 2e6);
            }
        })
    };
    let Some(checkpoint) = large() else { return };
    let truth = logits(&open(checkpoint, &Device::Cpu, Precision::Exact), &ids(60));
    let distance = |device: &Device| {
        let model = open(large().unwrap(), device, Precision::Fast);
        gyrus_testkit::distance(&logits(&model, &ids(60)), &truth)
    };
    let cpu = distance(&Device::Cpu);
    for device in devices() {
        let far = distance(&device);
        assert!(far <= 3.0 * cpu, "{device}: {far}, {cpu} on the CPU");
    }
}
