//! Certificates that several servers share. Knows how servers are told to show them, not who asks.

use std::path::PathBuf;

use crate::certificates::Certificates;
use crate::process::{directory, remove};
use crate::redis::{Builder, Redis};

/// Certificates that all of a set show.
#[derive(Debug)]
pub(crate) struct Papers {
    made: Certificates,
    dir: PathBuf,
}

impl Papers {
    pub(crate) fn make() -> Self {
        let made = directory("papers").and_then(|dir| Ok((Certificates::make(&dir)?, dir)));
        let (made, dir) = made.unwrap_or_else(|error| panic!("{error}"));
        Self { made, dir }
    }

    /// What was made.
    pub(crate) fn certificates(&self) -> &Certificates {
        &self.made
    }

    /// What a server's configuration says of them. It shows the client's certificate where it is a
    /// client itself.
    pub(crate) fn lines(&self) -> [(&'static str, String); 6] {
        let shown = |path: PathBuf| path.display().to_string();
        [
            ("tls-cert-file", shown(self.made.server_cert())),
            ("tls-key-file", shown(self.made.server_key())),
            ("tls-client-cert-file", shown(self.made.client_cert())),
            ("tls-client-key-file", shown(self.made.client_key())),
            ("tls-ca-cert-file", shown(self.made.ca())),
            ("tls-replication", "yes".to_owned()),
        ]
    }

    /// A server that shows these, and follows over TLS if it follows anybody.
    pub(crate) fn shown_by(&self, node: Builder, primary: Option<&Redis>) -> Builder {
        let node = match primary {
            Some(primary) => node.arg("replicaof", &format!("127.0.0.1 {}", primary.tls_port())),
            None => node,
        };
        self.lines().into_iter().fold(node.tls(), |node, (name, value)| node.arg(name, &value))
    }
}

impl Drop for Papers {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}
