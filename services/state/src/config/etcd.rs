//! The etcd in which state keeps its log.

use std::path::{Path, PathBuf};

use godel_etcd::{CertificateFiles, Client, ClientConfig, ClientError, TlsFiles, User};
use godel_kit::config::HumanDuration;
use godel_store::log::etcd::{EtcdConfig, PREFIX_DEFAULT, QUOTA_BYTES_DEFAULT};
use godel_wire::BadField;

/// The smallest quota: a group, a snapshot and their history must fit a fifth of it.
const QUOTA_BYTES_MIN: u64 = 64 << 20;

godel_kit::section! {
    /// The etcd in which state keeps its log.
    pub struct EtcdSection {
        /// Endpoints of the members of one etcd cluster, as `http://10.0.0.7:2379` or `https://etcd-1:2379`. The flag
        /// `--etcd-endpoints` sets them.
        pub endpoints: Vec<String> = Vec::new(),
        /// What all keys of this store in etcd begin with. Each state that uses the same etcd needs another prefix.
        pub prefix: String = PREFIX_DEFAULT.to_owned(),
        /// User of etcd, if etcd has users. It needs to read and write the keys below `prefix`.
        pub user: Option<String> = None,
        /// File with the password of `user` in its first line.
        pub password_file: Option<PathBuf> = None,
        /// File with the roots of etcd's certificates, in PEM; needed for `https` endpoints. It is read for each connection, as are
        /// `cert_file` and `key_file`.
        pub ca_file: Option<PathBuf> = None,
        /// File with the certificate that state shows to etcd, in PEM.
        pub cert_file: Option<PathBuf> = None,
        /// File with the key of `cert_file`, in PEM.
        pub key_file: Option<PathBuf> = None,
        /// A call of etcd ends within this time; then it is made again. 100 ms to 60 s.
        pub timeout: HumanDuration = HumanDuration::from_secs(5),
        /// The quota of etcd's database, which etcd does not say: its flag `--quota-backend-bytes`, or 2 GiB without that. While less
        /// than 40 % of it is free, only the history stays that the state needs; while less than 20 % is, writes are refused.
        pub quota_bytes: u64 = QUOTA_BYTES_DEFAULT,
        /// Other states may have the same store: one of them leads, and the others follow it and take its place. Then a state answers as the leader only
        /// while etcd answers. Without it, a state that starts takes the store over from any other one.
        pub shared: bool = false,
        /// Compact etcd, up to its revision ten minutes ago. That is for all who use the etcd: with `false` it is left to them, and
        /// without it what is deleted takes room for ever.
        pub compact: bool = true,
    }
}

impl EtcdSection {
    /// Checks what the types do not say.
    ///
    /// # Errors
    /// The first impossible setting, with its path in the section of state.
    pub fn validate(&self) -> Result<(), BadField> {
        let bad = |path: &str, what: &str| Err(BadField::new(format!("etcd.{path}"), what));
        if self.endpoints.is_empty() {
            return bad(
                "endpoints",
                "must name the endpoints of etcd: `--etcd-endpoints http://HOST:2379,…`",
            );
        }
        if self.prefix.is_empty() || !self.prefix.ends_with('/') {
            return bad("prefix", "must end with /");
        }
        if self.user.is_some() != self.password_file.is_some() {
            return bad("password_file", "must be set together with user");
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return bad("key_file", "must be set together with cert_file");
        }
        if !(100..=60_000).contains(&self.timeout.as_millis()) {
            return bad("timeout", "must be 100 ms to 60 s");
        }
        if self.quota_bytes < QUOTA_BYTES_MIN {
            return bad("quota_bytes", "must be at least 64 MiB");
        }
        Ok(())
    }

    /// The store in this etcd, of a state whose directory is `data_dir`. Nothing is called yet.
    ///
    /// # Errors
    /// An endpoint is malformed, or needs roots that are not given.
    pub fn store(&self, data_dir: &Path) -> Result<EtcdConfig, ClientError> {
        let own = self.cert_file.clone().zip(self.key_file.clone());
        let own = own.map(|(certificate, key)| CertificateFiles { certificate, key });
        let user = self.user.clone().zip(self.password_file.clone());
        let client = Client::start(&ClientConfig {
            endpoints: self.endpoints.clone(),
            timeout: *self.timeout,
            tls: self.ca_file.clone().map(|roots| TlsFiles { roots, own }),
            user: user.map(|(name, password_file)| User { name, password_file }),
        })?;
        Ok(EtcdConfig {
            prefix: self.prefix.clone(),
            quota_bytes: self.quota_bytes,
            compacts: self.compact,
            ..EtcdConfig::new(std::sync::Arc::new(client), data_dir)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_settings_are_named() {
        let good = EtcdSection { endpoints: vec!["http://h:1".to_owned()], ..EtcdSection::default() };
        assert_eq!(good.validate(), Ok(()));
        type Change = fn(&mut EtcdSection);
        let changes: [(&str, Change); 7] = [
            ("etcd.endpoints", |section| section.endpoints.clear()),
            ("etcd.prefix", |section| section.prefix = "godel".to_owned()),
            ("etcd.prefix", |section| section.prefix.clear()),
            ("etcd.password_file", |section| section.user = Some("u".to_owned())),
            ("etcd.key_file", |section| section.cert_file = Some("c".into())),
            ("etcd.timeout", |section| section.timeout = HumanDuration::from_millis(99)),
            ("etcd.quota_bytes", |section| section.quota_bytes = 1 << 20),
        ];
        for (path, change) in changes {
            let mut section = good.clone();
            change(&mut section);
            assert_eq!(section.validate().unwrap_err().path, path);
        }
    }

    #[test]
    fn endpoints_with_tls_need_roots() {
        let section = EtcdSection { endpoints: vec!["https://h:1".to_owned()], ..EtcdSection::default() };
        assert!(matches!(section.store(Path::new("d")), Err(ClientError::NoRoots(_))));
        let section = EtcdSection { ca_file: Some("ca.pem".into()), ..section };
        assert_eq!(section.store(Path::new("d")).unwrap().dir, Path::new("d"));
    }
}
