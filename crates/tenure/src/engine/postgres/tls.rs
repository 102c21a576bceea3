//! TLS for connections to a database, with channel binding.
//!
//! Channel binding ties the login to this TLS connection: the client hashes the certificate that it
//! was shown into its SCRAM proof (`tls-server-end-point`, RFC 5929), and the server compares it
//! with its own. A machine in between, with another certificate that the client trusts, cannot pass
//! the login on. It is used where the server offers it; `channel_binding=require` in the URL
//! refuses a server that does not.
//!
//! Written here because `tokio-postgres-rustls` 0.13 falls short: it reads the certificate as the
//! part of it that is signed, which fails, so it never binds; and it has no way to leave a Unix
//! socket unencrypted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ring::digest::{self, Algorithm, SHA256, SHA384, SHA512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::url::Location;
use crate::contract::Error;
use crate::engine::common::tls::{TlsOptions, client_config};

/// The options of a URL that name certificates.
const OPTIONS: TlsOptions = TlsOptions { ca: "sslrootcert=", cert: "sslcert=", key: "sslkey=" };

/// The identifiers of signatures, as they are encoded in a certificate, and the hash that a channel
/// is bound with: that of the signature, or SHA-256 where it is weaker.
const HASHES: &[(&[u8], &Algorithm)] = &[
    // RSA with MD5, SHA-1, SHA-256, SHA-384, SHA-512.
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c], &SHA384),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d], &SHA512),
    // ECDSA with SHA-1, SHA-256, SHA-384, SHA-512.
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03], &SHA384),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04], &SHA512),
];

/// Encrypts connections, if the URL allows it.
#[derive(Clone)]
pub(super) struct Tls(Option<Arc<ClientConfig>>);

impl Tls {
    /// Reads the certificates that the URL names.
    ///
    /// # Errors
    /// If a file of certificates cannot be used.
    pub(super) fn new(location: &Location) -> Result<Self, Error> {
        if !location.may_encrypt() {
            return Ok(Self(None));
        }
        Ok(Self(Some(client_config(&location.tls, &OPTIONS)?)))
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
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        match certificate.and_then(|certificate| end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
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

/// The hash of a server's certificate that stands for the connection. None if its signature has no
/// hash of its own (Ed25519) or one that its identifier does not tell (RSA-PSS): servers offer no
/// channel binding with such certificates.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let signature = signature_of(certificate)?;
    let (_, hash) = HASHES.iter().find(|(known, _)| *known == signature)?;
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

/// The identifier of the algorithm that signed a certificate:
/// `SEQUENCE { what is signed, SEQUENCE { identifier, .. }, signature }`.
fn signature_of(certificate: &[u8]) -> Option<&[u8]> {
    let (outer, _) = element(certificate, 0x30)?;
    let (_, after) = element(outer, 0x30)?;
    let (algorithm, _) = element(after, 0x30)?;
    element(algorithm, 0x06).map(|(identifier, _)| identifier)
}

/// The contents of the DER element at the front, which must have this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (&short, rest) = rest.split_first()?;
    let (length, rest) = if short < 0x80 {
        (usize::from(short), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
        if digits.len() > 4 {
            return None;
        }
        (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
    };
    if first == tag { rest.split_at_checked(length) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_bound_by_the_hash_of_the_certificates_signature() {
        let signed = |algorithm: &'static rcgen::SignatureAlgorithm| {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            params.self_signed(&key).unwrap().der().to_vec()
        };
        let certificate = signed(&rcgen::PKCS_ECDSA_P256_SHA256);
        let hash = digest::digest(&SHA256, &certificate);
        assert_eq!(end_point(&certificate).unwrap(), hash.as_ref());
        let certificate = signed(&rcgen::PKCS_ECDSA_P384_SHA384);
        let hash = digest::digest(&SHA384, &certificate);
        assert_eq!(end_point(&certificate).unwrap(), hash.as_ref());
        assert_eq!(end_point(&signed(&rcgen::PKCS_ED25519)), None);
        for length in [0, 1, 2, 3, 10, certificate.len() / 2] {
            let _ = end_point(&certificate[..length]);
        }
        assert_eq!(end_point(&certificate[..20]), None);
        assert_eq!(end_point(&[0x30, 0x85, 1, 1, 1, 1, 1, 0]), None);
    }
}
