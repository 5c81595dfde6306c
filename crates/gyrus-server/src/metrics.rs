//! Counts and times of what was served, for `/metrics` and `/v1/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Bounds of histograms of times, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// All counts.
pub(crate) struct Metrics {
    started: Instant,
    /// Responses by route and status.
    responses: Mutex<BTreeMap<(String, u16), u64>>,
    models: Mutex<BTreeMap<String, Arc<ModelCounts>>>,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) queue: Histogram,
    pub(crate) duration: Histogram,
    /// Requests whose client went away.
    pub(crate) disconnected: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// Counts of one model, since the server started. Tokens are counted when they come, so that rates can be seen while long
/// answers run.
#[derive(Debug, Default)]
pub(crate) struct ModelCounts {
    /// Generations, and requests of embeddings, ranks and transcripts, that have ended.
    pub(crate) requests: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) completion_tokens: AtomicU64,
}

/// A histogram of times.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    /// In microseconds.
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// The mean in seconds; 0 if there were none.
    pub(crate) fn mean(&self) -> f64 {
        let count = self.count.load(Ordering::Relaxed);
        self.sum.load(Ordering::Relaxed) as f64 / 1e6 / count.max(1) as f64
    }

    /// The counts of all buckets, for readers that compute quantiles of a time span.
    fn to_json(&self) -> Value {
        let buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let count = self.count.load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed) as f64 / 1e6;
        json!({ "bounds": BOUNDS, "buckets": buckets, "count": count, "sum": sum })
    }

    fn print(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let count = self.count.load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}");
    }
}

/// What a model does now.
pub(crate) struct Now {
    pub(crate) model: String,
    pub(crate) statistics: gyrus::Statistics,
    pub(crate) bytes: u64,
    /// The most tokens of a sequence.
    pub(crate) context: usize,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            started: Instant::now(),
            responses: Mutex::default(),
            models: Mutex::default(),
            first_token: Histogram::default(),
            between_tokens: Histogram::default(),
            queue: Histogram::default(),
            duration: Histogram::default(),
            disconnected: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Counts a response. `route` is a path of the route table, so that there are few of them.
    pub(crate) fn response(&self, route: &str, status: u16) {
        *lock(&self.responses).entry((route.to_owned(), status)).or_insert(0) += 1;
    }

    /// The counts of a model.
    pub(crate) fn of(&self, model: &str) -> Arc<ModelCounts> {
        Arc::clone(lock(&self.models).entry(model.to_owned()).or_default())
    }

    /// The numbers of responses by the first digit of their status, such as `2xx`.
    fn by_class(&self) -> serde_json::Map<String, Value> {
        let mut classes: BTreeMap<u16, u64> = BTreeMap::new();
        for ((_, status), count) in lock(&self.responses).iter() {
            *classes.entry(status / 100).or_default() += count;
        }
        classes.into_iter().map(|(class, count)| (format!("{class}xx"), count.into())).collect()
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The counts of models that are to be told.
    fn counts(&self, is_told: &dyn Fn(&str) -> bool) -> BTreeMap<String, Arc<ModelCounts>> {
        let models = lock(&self.models);
        let told = models.iter().filter(|(name, _)| is_told(name));
        told.map(|(name, counts)| (name.clone(), Arc::clone(counts))).collect()
    }

    /// The JSON of `/v1/metrics`, with models that are to be told.
    pub(crate) fn to_json(&self, now: &[Now], is_told: &dyn Fn(&str) -> bool) -> Value {
        // Models that are loaded but were not used yet are there too.
        now.iter().for_each(|now| drop(self.of(&now.model)));
        let models = self.counts(is_told);
        let sum =
            |of: fn(&ModelCounts) -> &AtomicU64| models.values().map(|counts| get(of(counts))).sum::<u64>();
        let each = models.iter().map(|(name, counts)| {
            let mut value = json!({
                "total_requests": get(&counts.requests),
                "total_prompt_tokens": get(&counts.prompt_tokens),
                "total_cached_tokens": get(&counts.cached_tokens),
                "total_completion_tokens": get(&counts.completion_tokens),
            });
            if let Some(Now { statistics, bytes, .. }) = now.iter().find(|now| now.model == *name) {
                for (name, figure) in [
                    ("running", statistics.running),
                    ("waiting", statistics.waiting),
                    ("kv_blocks", statistics.blocks),
                    ("kv_blocks_used", statistics.used_blocks),
                    ("preemptions", statistics.preemptions),
                    ("drafted_tokens", statistics.drafted_tokens),
                    ("accepted_tokens", statistics.accepted_tokens),
                    ("memory_bytes", *bytes),
                ] {
                    value[name] = figure.into();
                }
                value["hit_rate"] = statistics.hit_rate().into();
            }
            (name.clone(), value)
        });
        let each: serde_json::Map<String, Value> = each.collect();
        let now_sum =
            |of: fn(&gyrus::Statistics) -> u64| now.iter().map(|now| of(&now.statistics)).sum::<u64>();
        json!({
            "total_requests": sum(|counts| &counts.requests),
            "total_prompt_tokens": sum(|counts| &counts.prompt_tokens),
            "total_cached_tokens": sum(|counts| &counts.cached_tokens),
            "total_completion_tokens": sum(|counts| &counts.completion_tokens),
            "running": now_sum(|statistics| statistics.running),
            "waiting": now_sum(|statistics| statistics.waiting),
            "uptime_seconds": self.uptime().as_secs_f64(),
            "disconnected": get(&self.disconnected),
            "connections": get(&self.connections),
            "connections_refused": get(&self.refused),
            "responses": self.by_class(),
            "first_token_seconds_mean": self.first_token.mean(),
            "between_tokens_seconds_mean": self.between_tokens.mean(),
            "first_token_seconds": self.first_token.to_json(),
            "between_tokens_seconds": self.between_tokens.to_json(),
            "models": each,
        })
    }

    /// The text of `/metrics`, in the format of Prometheus, with models that are to be told.
    pub(crate) fn to_text(&self, now: &[Now], in_flight: usize, is_told: &dyn Fn(&str) -> bool) -> String {
        let mut out = String::new();
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        };
        head(&mut out, "gyrus_uptime_seconds", "gauge", "Time since the server started.");
        let _ = writeln!(out, "gyrus_uptime_seconds {}", self.uptime().as_secs_f64());
        head(&mut out, "gyrus_http_responses_total", "counter", "Responses by route and status.");
        for ((route, status), count) in lock(&self.responses).iter() {
            let route = escaped(route);
            let _ =
                writeln!(out, "gyrus_http_responses_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        for (name, kind, help, value) in [
            ("gyrus_connections", "gauge", "Open connections.", self.connections.load(Ordering::Relaxed)),
            (
                "gyrus_connections_refused_total",
                "counter",
                "Connections beyond the limit.",
                self.refused.load(Ordering::Relaxed),
            ),
            (
                "gyrus_disconnected_total",
                "counter",
                "Requests whose client went away.",
                self.disconnected.load(Ordering::Relaxed),
            ),
            ("gyrus_sequences_in_flight", "gauge", "Sequences, running or waiting.", in_flight as u64),
        ] {
            head(&mut out, name, kind, help);
            let _ = writeln!(out, "{name} {value}");
        }
        let models = self.counts(is_told);
        type Counted = (&'static str, &'static str, fn(&ModelCounts) -> &AtomicU64);
        const COUNTED: [Counted; 4] = [
            ("gyrus_requests_total", "Requests of the model that have ended.", |counts| &counts.requests),
            (
                "gyrus_prompt_tokens_total",
                "Tokens of prompts, and of texts that were embedded or ranked.",
                |counts| &counts.prompt_tokens,
            ),
            ("gyrus_cached_tokens_total", "Tokens of prompts from the cache.", |counts| {
                &counts.cached_tokens
            }),
            ("gyrus_generated_tokens_total", "Generated tokens, those of transcripts included.", |counts| {
                &counts.completion_tokens
            }),
        ];
        for (name, help, of) in COUNTED {
            head(&mut out, name, "counter", help);
            for (model, counts) in &models {
                let _ = writeln!(out, "{name}{{model=\"{}\"}} {}", escaped(model), get(of(counts)));
            }
        }
        type Gauge = (&'static str, &'static str, fn(&Now) -> u64);
        const GAUGES: [Gauge; 5] = [
            ("gyrus_running_sequences", "Sequences that have a slot.", |now| now.statistics.running),
            ("gyrus_waiting_sequences", "Sequences that wait for one.", |now| now.statistics.waiting),
            ("gyrus_kv_blocks", "Blocks of the KV cache.", |now| now.statistics.blocks),
            ("gyrus_kv_blocks_used", "Blocks that sequences hold.", |now| now.statistics.used_blocks),
            ("gyrus_model_memory_bytes", "Weights and KV cache.", |now| now.bytes),
        ];
        for (name, help, of) in GAUGES {
            head(&mut out, name, "gauge", help);
            for one in now {
                let _ = writeln!(out, "{name}{{model=\"{}\"}} {}", escaped(&one.model), of(one));
            }
        }
        self.first_token.print(&mut out, "gyrus_first_token_seconds", "Time to the first token.");
        self.between_tokens.print(&mut out, "gyrus_between_tokens_seconds", "Time between tokens.");
        self.queue.print(&mut out, "gyrus_queue_seconds", "Time until a sequence has a slot.");
        self.duration.print(&mut out, "gyrus_request_seconds", "Time of a whole request of a model.");
        out
    }
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative() {
        let metrics = Metrics::new();
        metrics.first_token.add(Duration::from_millis(2));
        metrics.first_token.add(Duration::from_secs(100));
        metrics.response("/v1/models", 200);
        metrics.of("a\"b").completion_tokens.fetch_add(7, Ordering::Relaxed);
        let text = metrics.to_text(&[], 3, &|_| true);
        for line in [
            "gyrus_first_token_seconds_bucket{le=\"0.001\"} 0",
            "gyrus_first_token_seconds_bucket{le=\"60\"} 1",
            "gyrus_first_token_seconds_bucket{le=\"+Inf\"} 2",
            "gyrus_http_responses_total{route=\"/v1/models\",status=\"200\"} 1",
            "gyrus_generated_tokens_total{model=\"a\\\"b\"} 7",
            "gyrus_sequences_in_flight 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
        let json = metrics.to_json(&[], &|_| true);
        assert_eq!(json["models"]["a\"b"]["total_completion_tokens"], 7);
        assert_eq!(
            (&json["responses"]["2xx"], &json["first_token_seconds"]["count"]),
            (&1.into(), &2.into())
        );
    }
}
