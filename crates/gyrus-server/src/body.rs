//! Bodies of requests: of limited size, in limited time.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::config::Config;
use crate::failure::{Failure, Kind};

/// Reads a body. One that says that it is too long is refused before it is read.
pub(crate) async fn read(headers: &HeaderMap, body: Body, config: &Config) -> Result<Bytes, Failure> {
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
    let limited = Limited::new(body, most);
    match tokio::time::timeout(config.body_timeout, limited.collect()).await {
        Err(_) => {
            let message = format!("the body did not come within {:?}", config.body_timeout);
            Err(Failure::new(Kind::Timeout, message))
        }
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Failure::new(Kind::Invalid, format!("the body could not be read: {error}"))),
    }
}
