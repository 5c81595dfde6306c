//! HTTPS.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::{Config, SetupError};

/// What accepts TLS connections, if the server has a certificate.
pub(crate) fn acceptor(config: &Config) -> Result<Option<TlsAcceptor>, SetupError> {
    let (Some(certificate), Some(key)) = (&config.tls_certificate, &config.tls_key) else { return Ok(None) };
    let wrong =
        |path: &Path, error: &dyn std::fmt::Display| SetupError::Tls(format!("{}: {error}", path.display()));
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| wrong(certificate, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    let built = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut built = built.map_err(|error| wrong(certificate, &error))?;
    built.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(built))))
}
