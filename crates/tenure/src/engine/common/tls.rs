//! One TLS configuration for every engine that opens its connections itself.
//!
//! Built with the provider `ring` by name: a program with two providers has no default one, and
//! `rustls` panics when it is asked for it. The authorities of the system are read once, all other
//! files at each call: a certificate that was replaced on disk is used by the next connection.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::url::TlsFiles;
use crate::contract::{Error, ErrorKind};

/// What the options of a URL that name certificates are called, for errors.
#[derive(Debug)]
pub(in crate::engine) struct TlsOptions {
    pub(in crate::engine) ca: &'static str,
    pub(in crate::engine) cert: &'static str,
    pub(in crate::engine) key: &'static str,
}

/// The configuration that trusts, and presents, what these files hold.
///
/// # Errors
/// If a file cannot be read, or holds no certificate or key that can be used.
pub(in crate::engine) fn client_config(
    files: &TlsFiles,
    options: &TlsOptions,
) -> Result<Arc<ClientConfig>, Error> {
    let unusable = |error: rustls::Error| {
        bad_file(format!("the certificates cannot be used: {error}"), options)
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
    let builder = builder.with_root_certificates(roots(files.ca.as_deref(), options)?);
    let config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                let what = format!("the file of {} has no private key: {error}", options.key);
                bad_file(what, options)
            })?;
            let certificates = certificates(cert, options.cert, options)?;
            builder.with_client_auth_cert(certificates, key).map_err(unusable)?
        }
    };
    Ok(Arc::new(config))
}

fn roots(ca: Option<&Path>, options: &TlsOptions) -> Result<Arc<RootCertStore>, Error> {
    // Hundreds of files: read once.
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let Some(ca) = ca else {
        let system = SYSTEM.get_or_init(|| {
            let mut store = RootCertStore::empty();
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Arc::new(store)
        });
        return Ok(Arc::clone(system));
    };
    let mut store = RootCertStore::empty();
    for certificate in certificates(ca, options.ca, options)? {
        store.add(certificate).map_err(|error| {
            bad_file(format!("a certificate of {} cannot be used: {error}", options.ca), options)
        })?;
    }
    Ok(Arc::new(store))
}

fn certificates(
    path: &Path,
    option: &str,
    options: &TlsOptions,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bad = |what: &str| bad_file(format!("the file of {option} {what}"), options);
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(&format!("cannot be read: {error}")))?;
    if found.is_empty() { Err(bad("has no certificate")) } else { Ok(found) }
}

fn bad_file(what: String, options: &TlsOptions) -> Error {
    let TlsOptions { ca, cert, key } = options;
    Error::new(ErrorKind::InvalidOption, what)
        .with_help(format!("give PEM files in {ca}, {cert} and {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: TlsOptions = TlsOptions { ca: "ca=", cert: "cert=", key: "key=" };

    #[test]
    fn a_file_that_has_no_certificate_or_key_is_named_by_its_option() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, missing) = (folder.path().join("empty"), folder.path().join("missing"));
        std::fs::write(&empty, "").unwrap();
        let refusal = |files: &TlsFiles| client_config(files, &OPTIONS).unwrap_err();
        for (path, what) in [(&empty, "has no certificate"), (&missing, "cannot be read")] {
            let files = TlsFiles { ca: Some(path.clone()), identity: None };
            let error = refusal(&files);
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(&format!("the file of ca= {what}")), "{error}");
        }
        let identity = Some((empty.clone(), empty));
        let error = refusal(&TlsFiles { ca: None, identity });
        assert!(error.to_string().contains("key= has no private key"), "{error}");
        assert!(error.help().contains("PEM"), "{error}");
    }

    #[test]
    fn without_files_the_system_is_trusted() {
        assert!(client_config(&TlsFiles::default(), &OPTIONS).is_ok());
    }
}
