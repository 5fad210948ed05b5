//! What issues leaves and signs persons' tokens: the private keys of a root, and the key of tokens.

use std::{fmt, net::IpAddr, time::Duration};

use godel_identity::{
    leaves::LeafTimes,
    names::{ClusterName, Identity},
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyIdMethod, KeyUsagePurpose, PublicKeyData as _, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, DnsName};
use zeroize::Zeroizing;

use crate::{
    fingerprints::{hex, sha256},
    keys::{KeyPair, key_id},
    person_tokens::TokenKey,
    random::{NoRandomBytes, random_bytes},
    requests::LeafPublicKey,
    roots::RootCert,
    seal::SealKey,
};

/// Most DNS names, and most addresses, of a leaf.
pub const N_SERVER_NAMES_MAX: usize = 64;
/// Largest signer, sealed, bytes: ours have less than 1 KiB.
pub const SEALED_BYTES_MAX: usize = 16 << 10;
/// What an unsealed signer begins with.
const FORMAT: &[u8] = b"godel-signer-1\0";
/// The last second that a certificate can say: 9999-12-31 23:59:59.
const LAST_SECOND: u64 = 253_402_300_799;

/// What a leaf is to say.
#[derive(Clone, Debug)]
pub struct LeafOrder {
    /// Whose it is.
    pub identity: Identity,
    /// When it is valid.
    pub times: LeafTimes,
    /// What people's tools know the server by; none for agents.
    pub server_names: ServerNames,
}

/// Names of a server beside its identity: members do not look at them, people's tools do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerNames {
    /// DNS names.
    pub dns: Vec<String>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
}

/// A leaf, as issued.
#[derive(Clone, Debug)]
pub struct IssuedLeaf {
    /// The certificate.
    pub der: CertificateDer<'static>,
    /// Its number, in hexadecimal digits.
    pub serial: String,
    /// When it is valid.
    pub times: LeafTimes,
}

/// Why nothing is issued or signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// An identity of another cluster.
    #[error("{identity} is not of cluster {cluster}, whose signer this is")]
    OtherCluster {
        /// What was ordered.
        identity: Identity,
        /// The signer's.
        cluster: ClusterName,
    },
    /// Names of a server, for what is none.
    #[error("an agent is no server: a leaf of role agent has no DNS names and addresses")]
    NoServer,
    /// Not a DNS name.
    #[error("`{}` is no DNS name; give a host name without scheme and port, or an address", .0.escape_debug())]
    DnsName(String),
    /// Too many.
    #[error("{0} names of a server; at most {N_SERVER_NAMES_MAX} DNS names and as many addresses")]
    TooManyNames(usize),
    /// What no certificate can say.
    #[error("the times of the leaf are out of range")]
    Times,
    /// No keys, numbers or signatures.
    #[error(transparent)]
    Random(#[from] NoRandomBytes),
    /// It is sealed with another key, or was changed.
    #[error(
        "the signer of cluster {cluster} is sealed with the key {sealed_by}, and `pki/seal.key` is {own}; put back the file that belongs to \
         this store, or make a new CA with `godel ca new`"
    )]
    Sealed {
        /// Whose signer it is.
        cluster: ClusterName,
        /// The key that it says to be sealed with.
        sealed_by: String,
        /// The key at hand.
        own: String,
    },
    /// What was sealed is no signer that is known here.
    #[error("the sealed signer cannot be read: it is damaged, or of a newer version of godel")]
    Unreadable,
}

/// The private keys of a cluster.
pub struct Signer {
    cluster: ClusterName,
    root: RootCert,
    root_key: KeyPair,
    token_key: KeyPair,
}

impl Signer {
    /// Makes a root and the key of tokens. Its root does not expire: a cluster changes it by `godel ca rotate`, and never by surprise.
    ///
    /// # Errors
    /// [`SignerError::Random`].
    pub fn make(cluster: ClusterName) -> Result<Self, SignerError> {
        let (root_key, token_key) = (KeyPair::generate_p256()?, KeyPair::generate_ed25519()?);
        let params = root_params(&cluster, &root_key)?;
        // Only the signature is left to fail.
        let root = params.self_signed(&root_key).map_err(|_| NoRandomBytes)?;
        let root = RootCert::read(root.der().clone()).map_err(|_| SignerError::Unreadable)?;
        Ok(Self { cluster, root, root_key, token_key })
    }

    /// Whose signer it is.
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// The root that issues its leaves.
    pub fn root(&self) -> &RootCert {
        &self.root
    }

    /// The key that checks the tokens that it signs.
    pub fn token_key(&self) -> TokenKey {
        let mut public = [0; 32];
        public.copy_from_slice(self.token_key.der_bytes());
        TokenKey::new(public)
    }

    pub(crate) fn sign_token(&self, signed: &[u8]) -> Result<Vec<u8>, NoRandomBytes> {
        self.token_key.sign_bytes(signed)
    }

    /// Issues a leaf for a key: for clients, and for servers unless it is an agent's.
    ///
    /// # Errors
    /// What is wrong with the order.
    pub fn issue(&self, order: &LeafOrder, key: &LeafPublicKey) -> Result<IssuedLeaf, SignerError> {
        let identity = &order.identity;
        if *identity.cluster() != self.cluster {
            return Err(SignerError::OtherCluster {
                identity: identity.clone(),
                cluster: self.cluster.clone(),
            });
        }
        let serial = random_serial()?;
        let mut params = CertificateParams::default();
        set_times(&mut params, order.times)?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.subject_alt_names = names(order)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, identity.role().as_str());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if identity.role().is_server() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.key_identifier_method = KeyIdMethod::PreSpecified(key_id(key.der_bytes()));
        params.use_authority_key_identifier_extension = true;
        let issuer_params = root_params(&self.cluster, &self.root_key)?;
        let issuer = Issuer::from_params(&issuer_params, &self.root_key);
        // Only the signature is left to fail.
        let certificate = params.signed_by(key, &issuer).map_err(|_| NoRandomBytes)?;
        Ok(IssuedLeaf { der: certificate.der().clone(), serial: hex(&serial), times: order.times })
    }

    /// The signer, sealed, as the store keeps it.
    ///
    /// # Errors
    /// [`SignerError::Random`].
    pub fn seal(&self, key: &SealKey) -> Result<Vec<u8>, SignerError> {
        let mut plain = Zeroizing::new(FORMAT.to_vec());
        for field in [self.root.der().as_ref(), self.root_key.pkcs8(), self.token_key.pkcs8()] {
            let n_bytes = u16::try_from(field.len()).map_err(|_| SignerError::Unreadable)?;
            plain.extend_from_slice(&n_bytes.to_be_bytes());
            plain.extend_from_slice(field);
        }
        Ok(key.seal(&purpose(&self.cluster), &plain)?)
    }

    /// Opens the signer of a cluster. `sealed_by` is the [id](SealKey::id) of the key that it was sealed with, for the error.
    ///
    /// # Errors
    /// The key is another one, or what was sealed is no signer.
    pub fn open(
        cluster: ClusterName,
        sealed: &[u8],
        sealed_by: &str,
        key: &SealKey,
    ) -> Result<Self, SignerError> {
        let plain = key.open(&purpose(&cluster), sealed);
        let Some(plain) = plain.filter(|_| sealed.len() <= SEALED_BYTES_MAX) else {
            let (sealed_by, own) = (sealed_by.to_owned(), key.id().to_owned());
            return Err(SignerError::Sealed { cluster, sealed_by, own });
        };
        let mut rest = plain.strip_prefix(FORMAT).ok_or(SignerError::Unreadable)?;
        let root = RootCert::read(take_field(&mut rest)?.to_vec()).map_err(|_| SignerError::Unreadable)?;
        let root_key = KeyPair::read(take_field(&mut rest)?).ok_or(SignerError::Unreadable)?;
        let token_key = KeyPair::read(take_field(&mut rest)?).ok_or(SignerError::Unreadable)?;
        let is_sound = rest.is_empty()
            && *root_key.algorithm() == rcgen::PKCS_ECDSA_P256_SHA256
            && *token_key.algorithm() == rcgen::PKCS_ED25519;
        if is_sound { Ok(Self { cluster, root, root_key, token_key }) } else { Err(SignerError::Unreadable) }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("cluster", &self.cluster)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

/// What a signer is sealed for: that of another cluster is not opened in its place.
fn purpose(cluster: &ClusterName) -> String {
    format!("signer {cluster}")
}

/// The next field, with its length before it.
fn take_field<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], SignerError> {
    let split = rest
        .split_first_chunk::<2>()
        .and_then(|(n_bytes, further)| further.split_at_checked(usize::from(u16::from_be_bytes(*n_bytes))));
    let (field, further) = split.ok_or(SignerError::Unreadable)?;
    *rest = further;
    Ok(field)
}

/// What the root of that key says, but for its number. Roots of one cluster have names of their own, so that chains name the right one.
fn root_params(cluster: &ClusterName, key: &KeyPair) -> Result<CertificateParams, NoRandomBytes> {
    let mut params = CertificateParams::default();
    let name = format!("{cluster} root {}", hex(&sha256(key.der_bytes())[..4]));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // From before any clock's time to the last one that a certificate can say.
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(LAST_SECOND);
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()?));
    params.key_identifier_method = KeyIdMethod::PreSpecified(key_id(key.der_bytes()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// The number of a certificate: positive, and with all its bytes, so that it is written as it is.
fn random_serial() -> Result<[u8; 16], NoRandomBytes> {
    let mut serial: [u8; 16] = random_bytes()?;
    serial[0] = serial[0] & 0x3f | 0x40;
    Ok(serial)
}

fn names(order: &LeafOrder) -> Result<Vec<SanType>, SignerError> {
    let ServerNames { dns, addresses } = &order.server_names;
    let is_named = !dns.is_empty() || !addresses.is_empty();
    if is_named && !order.identity.role().is_server() {
        return Err(SignerError::NoServer);
    }
    if dns.len() > N_SERVER_NAMES_MAX || addresses.len() > N_SERVER_NAMES_MAX {
        return Err(SignerError::TooManyNames(dns.len() + addresses.len()));
    }
    let uri = order.identity.to_string().try_into().map_err(|_| SignerError::Unreadable)?;
    let mut names = vec![SanType::URI(uri)];
    for name in dns {
        let bad = || SignerError::DnsName(name.chars().take(80).collect());
        DnsName::try_from(name.as_str()).map_err(|_| bad())?;
        names.push(SanType::DnsName(name.as_str().try_into().map_err(|_| bad())?));
    }
    names.extend(addresses.iter().copied().map(SanType::IpAddress));
    Ok(names)
}

fn set_times(params: &mut CertificateParams, times: LeafTimes) -> Result<(), SignerError> {
    let (from, to) = (times.not_before_ms / 1_000, times.not_after_ms / 1_000);
    if from > to || to > LAST_SECOND {
        return Err(SignerError::Times);
    }
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(from);
    params.not_after = epoch + Duration::from_secs(to);
    Ok(())
}

#[cfg(test)]
mod tests;
