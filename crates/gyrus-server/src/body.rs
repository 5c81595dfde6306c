//! Bodies of requests: of limited size, in limited time, and of limited size in total, with the values that they become.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::config::Config;
use crate::failure::{Failure, Kind};
use crate::fields::aside;
use crate::json_size::bytes_of_values;

/// Bytes of all bodies together, unless that is less than some of the largest.
const TOTAL: usize = 512 << 20;
/// How many of the largest bodies there is room for.
const LARGEST: usize = 8;

/// Counts the bytes of all bodies in memory, and of the values of their JSON.
#[derive(Debug)]
pub(crate) struct Bodies {
    most: usize,
    taken: AtomicUsize,
}

/// Bytes of one body, until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    bodies: Arc<Bodies>,
    bytes: usize,
}

impl Bodies {
    /// `largest`: the most bytes of a body.
    pub(crate) fn new(largest: usize) -> Arc<Bodies> {
        Arc::new(Bodies { most: TOTAL.max(largest.saturating_mul(LARGEST)), taken: AtomicUsize::new(0) })
    }

    /// A body without bytes.
    pub(crate) fn hold(self: &Arc<Bodies>) -> Held {
        Held { bodies: Arc::clone(self), bytes: 0 }
    }
}

impl Held {
    /// Adds bytes that have come, if there is room for them.
    fn add(&mut self, bytes: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= self.bodies.most);
        let added = self.bodies.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok();
        if added {
            self.bytes += bytes;
        }
        added
    }

    /// Adds room for the values of a body of JSON, before it is parsed: they may take a hundred times its bytes.
    pub(crate) fn add_values(&mut self, body: &[u8]) -> Result<(), Failure> {
        let bytes = aside(body.len(), || bytes_of_values(body));
        let most = self.bodies.most;
        if bytes > most {
            let message = format!(
                "the values of the body would take {bytes} bytes of memory, this server allows {most}"
            );
            return Err(Failure::new(Kind::TooLarge, message));
        }
        if self.add(bytes) { Ok(()) } else { Err(no_room()) }
    }
}

/// Other requests take the memory for bodies.
fn no_room() -> Failure {
    let message = "the bodies of other requests take all memory for them: try again later";
    Failure::new(Kind::Unavailable, message).with_retry(5)
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bodies.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Reads a body. One that says that it is too long is refused before it is read. Bytes count when they come: a client that
/// only announces them takes no room.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    config: &Config,
    held: &mut Held,
) -> Result<Bytes, Failure> {
    let most = config.max_body;
    let too_large = || {
        let message = format!("the body is longer than {most} bytes, which this server allows");
        Failure::new(Kind::TooLarge, message)
    };
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > most as u64) {
        return Err(too_large());
    }
    let mut limited = Limited::new(body, most);
    let read = async {
        // Copied, since many small pieces would keep the buffers that they were read into.
        let mut all = Vec::new();
        while let Some(frame) = limited.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => too_large(),
                false => Failure::new(Kind::Invalid, format!("the body could not be read: {error}")),
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if !held.add(data.len()) {
                return Err(no_room());
            }
            all.extend_from_slice(&data);
        }
        Ok(Bytes::from(all))
    };
    match tokio::time::timeout(config.body_timeout, read).await {
        Ok(read) => read,
        Err(_) => {
            let message = format!("the body did not come within {:?}", config.body_timeout);
            Err(Failure::new(Kind::Timeout, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_bodies_together_are_limited() {
        assert_eq!(Bodies::new(8 << 20).most, TOTAL);
        assert_eq!(Bodies::new(1 << 30).most, 8 << 30);
        let bodies = Arc::new(Bodies { most: 100, taken: AtomicUsize::new(0) });
        let config = Config::default();
        let send = async |bytes: usize, held: &mut Held| {
            read(&HeaderMap::new(), Body::from(vec![b'a'; bytes]), &config, held).await
        };
        let mut first = bodies.hold();
        assert_eq!(send(70, &mut first).await.unwrap().len(), 70);
        let mut second = bodies.hold();
        let refused = send(40, &mut second).await.unwrap_err();
        assert_eq!((refused.kind, refused.retry_after.is_some()), (Kind::Unavailable, true));
        drop(second);
        drop(first);
        let mut third = bodies.hold();
        assert_eq!(send(100, &mut third).await.unwrap().len(), 100);
        // Room for the bytes of a body is not yet room for its values.
        let refused = third.add_values(b"[0]").unwrap_err();
        assert_eq!(refused.kind, Kind::TooLarge);
        assert!(refused.message.contains("allows 100"), "{}", refused.message);
        let refused = third.add_values(b"1").unwrap_err();
        assert_eq!((refused.kind, refused.retry_after.is_some()), (Kind::Unavailable, true));
        drop(third);
        assert_eq!(bodies.taken.load(Ordering::Acquire), 0);
    }
}
