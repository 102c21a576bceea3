//! Certificates made for one test run. Knows who vouches for whom, not what speaks TLS.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::process::write;

/// An authority of its own, and what it vouches for, as PEM files in one directory.
#[derive(Debug, Clone)]
pub struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Makes a new authority, a server certificate for `localhost` and `127.0.0.1`, and a client
    /// certificate, in a directory that is there.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn make(dir: &Path) -> Result<Self, String> {
        let made = Self { dir: dir.to_owned() };
        made.write().map_err(|error| format!("no certificates in {}: {error}", dir.display()))?;
        Ok(made)
    }

    /// The certificate of the authority.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The certificate of the server.
    #[must_use]
    pub fn server_cert(&self) -> PathBuf {
        self.dir.join("server.crt")
    }

    /// The key of the server.
    #[must_use]
    pub fn server_key(&self) -> PathBuf {
        self.dir.join("server.key")
    }

    /// The certificate of a client, whose common name is `client`.
    #[must_use]
    pub fn client_cert(&self) -> PathBuf {
        self.dir.join("client.crt")
    }

    /// The key of that client.
    #[must_use]
    pub fn client_key(&self) -> PathBuf {
        self.dir.join("client.key")
    }

    fn write(&self) -> Result<(), String> {
        let authority_key = KeyPair::generate().map_err(text)?;
        let mut authority = params("authority for one test run", &[])?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = authority.self_signed(&authority_key).map_err(text)?;
        write(&self.ca(), &certificate.pem())?;

        let issuer = Issuer::new(authority, authority_key);
        let mut server = params("localhost", &["localhost", "127.0.0.1"])?;
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        issue(&server, &issuer, &self.server_cert(), &self.server_key())?;
        let mut client = params("client", &[])?;
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        issue(&client, &issuer, &self.client_cert(), &self.client_key())
    }
}

fn params(name: &str, addresses: &[&str]) -> Result<CertificateParams, String> {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(addresses).map_err(text)?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn issue(
    params: &CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
    cert: &Path,
    key: &Path,
) -> Result<(), String> {
    let own = KeyPair::generate().map_err(text)?;
    let certificate = params.signed_by(&own, issuer).map_err(text)?;
    write(cert, &certificate.pem())?;
    write(key, &own.serialize_pem())
}

#[expect(clippy::needless_pass_by_value, reason = "this is how `map_err` hands it over")]
fn text(error: rcgen::Error) -> String {
    error.to_string()
}
