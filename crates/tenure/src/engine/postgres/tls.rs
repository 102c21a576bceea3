//! TLS for connections to a database. Knows certificates, not what is said.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::url::Location;
use crate::contract::{Error, ErrorKind};

/// Encrypts, if the location may be spoken to in TLS.
#[derive(Clone)]
pub(super) struct Tls(Option<Arc<ClientConfig>>);

impl Tls {
    /// What a location needs. Built with a provider of our own choice: with two in one program, the
    /// default one panics.
    ///
    /// # Errors
    /// If a file of certificates cannot be used.
    pub(super) fn new(location: &Location) -> Result<Self, Error> {
        if !location.may_encrypt() {
            return Ok(Self(None));
        }
        let broken =
            |error: rustls::Error| bad_file(format!("the certificates cannot be used: {error}"));
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(broken)?;
        let builder = builder.with_root_certificates(roots(location.ca.as_deref())?);
        let config = match &location.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| bad_file(format!("sslkey has no private key: {error}")))?;
                let certs = certificates("sslcert", cert)?;
                builder.with_client_auth_cert(certs, key).map_err(broken)?
            }
        };
        Ok(Self(Some(Arc::new(config))))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        let Some(config) = &self.0 else { return Ok(Handshake(None)) };
        // A Unix socket has no host, and needs no TLS.
        let Ok(name) = ServerName::try_from(host.to_owned()) else { return Ok(Handshake(None)) };
        Ok(Handshake(Some((TlsConnector::from(Arc::clone(config)), name))))
    }
}

/// A handshake about to be made, if any.
pub(super) struct Handshake(Option<(TlsConnector, ServerName<'static>)>);

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let Some((connector, name)) = self.0 else {
                return Err(io::Error::other("this connection speaks no TLS"));
            };
            Ok(Encrypted(Box::new(connector.connect(name, stream).await?)))
        })
    }
}

/// An encrypted connection.
pub(super) struct Encrypted(Box<client::TlsStream<Socket>>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

fn roots(ca: Option<&Path>) -> Result<Arc<RootCertStore>, Error> {
    // Hundreds of files, read once: they do not change while a program reconnects.
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
    for certificate in certificates("sslrootcert", ca)? {
        store.add(certificate).map_err(|error| {
            bad_file(format!("a certificate of sslrootcert cannot be used: {error}"))
        })?;
    }
    Ok(Arc::new(store))
}

fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad_file(format!("the file of {option} cannot be read: {error}")))?;
    if found.is_empty() {
        return Err(bad_file(format!("the file of {option} has no certificate")));
    }
    Ok(found)
}

fn bad_file(what: String) -> Error {
    Error::new(ErrorKind::InvalidOption, what)
        .with_help("give PEM files in sslrootcert=, sslcert= and sslkey=")
}
