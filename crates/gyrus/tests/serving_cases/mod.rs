//! What many requests at once must get, on any device.

use gyrus::{
    ContextChoice, Device, Dry, DynamicTemperature, Error, Event, Generation, Mirostat, Model, Options,
    Precision, Prompt, Request, Sampler, Session, StopReason, Xtc,
};

use gyrus_formats::Checkpoint;

use crate::short_tales;

/// Ids that all models have.
pub(crate) const VOCAB: u32 = 96;

/// A model on a device.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) device: Device,
    /// Whether it has layers with a state.
    pub(crate) is_hybrid: bool,
}

impl Served {
    pub(crate) const fn tales(device: Device) -> Served {
        Served { device, is_hybrid: false }
    }

    #[allow(dead_code, reason = "not all tests run hybrids")]
    pub(crate) const fn hybrid(device: Device) -> Served {
        Served { device, is_hybrid: true }
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        match self.is_hybrid {
            true => Some(Checkpoint::open(&gyrus_testkit::data("tiny/qwen35")?).unwrap()),
            false => short_tales::checkpoint(2, 0),
        }
    }
}

/// A request: prompt, sampler and tokens.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampler: Sampler,
    pub(crate) tokens: usize,
}

impl Ask {
    fn request(&self) -> Request {
        Request::ids(self.prompt.clone())
            .sampler(self.sampler.clone())
            .max_tokens(self.tokens)
            .ignore_end(true)
    }

    /// Runs the request in a session of its own.
    pub(crate) fn run(&self, model: &Model) -> Result<Vec<u32>, Error> {
        let mut session = model.session();
        tokens(self.begin(&mut session)?)
    }

    /// Starts the request in a session.
    pub(crate) fn begin<'s>(&self, session: &'s mut Session) -> Result<Generation<'s>, Error> {
        session.generate(self.request())
    }
}

/// The tokens of a request that was started.
pub(crate) fn tokens(mut generation: Generation<'_>) -> Result<Vec<u32>, Error> {
    let mut ids = Vec::new();
    while let Some(event) = generation.next()? {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Stop { reason, .. } => assert_eq!(reason, StopReason::MaxTokens),
            _ => {}
        }
    }
    Ok(ids)
}

/// Samplers of which some have a state, and some are not for devices.
fn sampler(n: u32) -> Sampler {
    let drawn = Sampler { temperature: 2.0, seed: n.into(), ..Sampler::default() };
    match n % 7 {
        0 => Sampler::default(),
        1 => Sampler { top_k: 40, ..drawn },
        2 => Sampler { temperature: 1.5, repetition_penalty: 1.3, ..drawn },
        3 => Sampler { mirostat: Some(Mirostat { tau: 3.0, eta: 0.4, mu: None }), ..drawn },
        4 => Sampler {
            dry: Dry { multiplier: 2.0, allowed_length: 1, ..Dry::default() },
            xtc: Xtc { probability: 0.5, threshold: 0.05 },
            ..drawn
        },
        5 => Sampler {
            typical_p: 0.8,
            top_n_sigma: 2.0,
            presence_penalty: 1.0,
            logit_bias: vec![(3, 4.0), (5, f32::NEG_INFINITY)],
            order: "penalties;top_n_sigma;typ_p;temperature".parse().unwrap(),
            ..drawn
        },
        _ => Sampler {
            top_p: 0.9,
            dynamic_temperature: DynamicTemperature { range: 1.0, exponent: 1.5 },
            ..drawn
        },
    }
}

/// Requests whose prompts begin with `shared` common tokens.
pub(crate) fn asks(count: u32, shared: u32, tokens: usize) -> Vec<Ask> {
    let ask = |n: u32| Ask {
        prompt: (0..shared)
            .map(|i| (i * 31 + 7) % VOCAB)
            .chain((0..3 + n * 7 % 40).map(|i| (i * 37 + 11 * n + 3) % VOCAB))
            .collect(),
        sampler: sampler(n),
        tokens: tokens + n as usize % 5,
    };
    (0..count).map(ask).collect()
}

pub(crate) fn open(
    served: &Served,
    precision: Precision,
    change: impl FnOnce(&mut Options),
) -> Option<Model> {
    let mut options =
        Options { device: served.device.clone(), precision, context: Some(256), ..Options::default() };
    change(&mut options);
    Some(Model::load(served.checkpoint()?, &options).unwrap())
}

/// What each request gets alone, without a prefix cache.
pub(crate) fn alone(served: &Served, precision: Precision, asks: &[Ask]) -> Option<Vec<Vec<u32>>> {
    let model = open(served, precision, |options| options.prefix_cache = false)?;
    Some(asks.iter().map(|ask| ask.run(&model).unwrap()).collect())
}

/// Runs all requests at once, each on a thread of its own.
pub(crate) fn at_once(model: &Model, asks: &[Ask]) -> Vec<Result<Vec<u32>, Error>> {
    std::thread::scope(|scope| {
        let running: Vec<_> = asks.iter().map(|ask| scope.spawn(|| ask.run(model))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Requests that run together get what each gets alone, whoever drives the scheduler.
pub(crate) fn together_is_alone(served: &Served, precision: Precision, count: u32, tokens: usize) {
    let asks = asks(count, 0, tokens);
    let Some(expected) = alone(served, precision, &asks) else { return };
    for driven in [false, true] {
        let Some(model) = open(served, precision, |options| options.sessions = count as usize) else {
            return;
        };
        let _driver = driven.then(|| model.drive().unwrap());
        let got: Vec<_> = at_once(&model, &asks).into_iter().map(Result::unwrap).collect();
        assert_eq!(got, expected, "driven: {driven}");
    }
}

/// A common prefix is computed once, and the results have the bits of those without a prefix cache.
pub(crate) fn prefixes_are_computed_once(served: &Served, precision: Precision, count: u32) {
    let shared = 100;
    let asks = asks(count, shared, 6);
    let Some(expected) = alone(served, precision, &asks) else { return };
    let strict = |options: &mut Options| {
        options.sessions = count as usize;
        options.strict_prefixes = true;
    };
    // The whole blocks of the prefix, for all but the first.
    let reused = u64::from(shared / 32 * 32) * u64::from(count - 1);
    let Some(model) = open(served, precision, strict) else { return };
    let got: Vec<_> = asks.iter().map(|ask| ask.run(&model).unwrap()).collect();
    assert_eq!(got, expected, "one after another");
    let statistics = model.statistics();
    assert!(statistics.cached_tokens >= reused, "{statistics:?}");
    let run_at_once = |asks: &[Ask], expected: &[Vec<u32>]| {
        let model = open(served, precision, strict)?;
        let _driver = model.drive().unwrap();
        let got: Vec<_> = at_once(&model, asks).into_iter().map(Result::unwrap).collect();
        assert_eq!(got, expected, "all at once");
        let statistics = model.statistics();
        assert_eq!(statistics.requests, asks.len() as u64);
        Some(statistics)
    };
    let Some(statistics) = run_at_once(&asks, &expected) else { return };
    assert!(served.is_hybrid || statistics.cached_tokens >= reused, "{statistics:?}");
    // The prompt that a hybrid reads first may have its checkpoint after the prefix, unless the prefix has the last whole
    // block of all prompts.
    let ends = |ask: &Ask| (ask.prompt.len() - 1) / 32 == shared as usize / 32;
    let pairs = asks.iter().cloned().zip(expected).filter(|(ask, _)| ends(ask));
    let (asks, expected): (Vec<_>, Vec<_>) = pairs.unzip();
    let reused = u64::from(shared / 32 * 32) * (asks.len() as u64 - 1);
    let Some(statistics) = run_at_once(&asks, &expected) else { return };
    assert!(asks.len() > 3 && statistics.cached_tokens >= reused, "{statistics:?}");
}

/// With blocks for a quarter of the load all requests finish with the right tokens.
pub(crate) fn shortage_preempts(served: &Served, precision: Precision, count: u32, tokens: usize) {
    let asks = asks(count, 0, tokens);
    let Some(expected) = alone(served, precision, &asks) else { return };
    let all: usize = asks.iter().map(|ask| (ask.prompt.len() + ask.tokens).div_ceil(32)).sum();
    let longest = asks.iter().map(|ask| (ask.prompt.len() + ask.tokens).div_ceil(32)).max().unwrap_or(1);
    let Some(sized) = open(served, precision, |_| {}) else { return };
    let ContextChoice { cache_bytes, state_bytes, total_tokens, .. } = sized.context();
    let block_bytes = (cache_bytes - state_bytes) / (total_tokens as u64 / 32);
    // Hybrids run only as many at once as have records.
    let blocks = (all / if served.is_hybrid { 8 } else { 4 }).max(longest);
    let Some(model) = open(served, precision, |options| {
        options.kv_memory = Some(block_bytes * blocks as u64 + state_bytes);
        options.context = None;
        options.strict_prefixes = true;
    }) else {
        return;
    };
    assert_eq!(model.context().total_tokens, 32 * blocks);
    let _driver = model.drive().unwrap();
    let got: Vec<_> = at_once(&model, &asks).into_iter().map(Result::unwrap).collect();
    for (n, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let first = got.iter().zip(expected).position(|(a, b)| a != b);
        let prompt = asks[n].prompt.len();
        assert_eq!(got, expected, "request {n} of {prompt} tokens differs at {first:?}");
    }
    assert!(model.statistics().preemptions > 0, "{:?}", model.statistics());
}

/// A session whose blocks others have taken computes its prompt and its generated tokens again, with the same bits.
pub(crate) fn what_is_computed_again_has_the_same_bits(served: &Served, precision: Precision) {
    let ask = &asks(2, 40, 0)[1];
    let request = |prompt: Prompt, tokens: usize| {
        let request = Request::new(prompt).sampler(ask.sampler.clone());
        request.max_tokens(tokens).ignore_end(true).logprobs(true)
    };
    let run = |session: &mut Session, request: Request| {
        let mut generation = session.generate(request).unwrap();
        let mut tokens = Vec::new();
        while let Some(event) = generation.next().unwrap() {
            if let Event::Token { id, logprob, .. } = event {
                tokens.push((id, logprob.unwrap().to_bits()));
            }
        }
        tokens
    };
    let Some(model) = open(served, precision, |options| options.prefix_cache = false) else { return };
    let whole = run(&mut model.session(), request(Prompt::Ids(ask.prompt.clone()), 60));
    let mut session = model.session();
    let mut parts = run(&mut session, request(Prompt::Ids(ask.prompt.clone()), 40));
    // The cache holds one long sequence only.
    let other: Vec<u32> = (0..250).map(|i| (i * 29 + 3) % VOCAB).collect();
    run(&mut model.session(), request(Prompt::Ids(other), 2));
    parts.extend(run(&mut session, request(Prompt::Continue, 20)));
    assert_eq!(parts, whole);
}
