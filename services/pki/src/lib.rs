//! The cryptography of identities: roots, leaves, tokens, and the TLS configurations of servers and clients.
//!
//! State makes a [`Signer`](signer::Signer) at its first start and seals it; it issues a leaf to each process of the cluster. What a process
//! shows and trusts is its [`TlsIdentity`](tls::TlsIdentity), which makes the configurations of its servers and clients.
//!
//! ```
//! use godel_identity::{leaves::LeafTimes, names::{Identity, Role}};
//! use godel_pki::{requests::{LeafKey, check_request}, roots::Trust, signer::{LeafOrder, ServerNames, Signer}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = "godel-0badcafe".parse()?;
//! let signer = Signer::make(cluster)?;
//! // What joins makes its key and asks for a leaf.
//! let key = LeafKey::generate()?;
//! let request = key.request()?;
//! // State checks the request and answers with the leaf.
//! let identity: Identity = "spiffe://godel-0badcafe/agent/n1".parse()?;
//! let times = LeafTimes::of_issue(1_790_000_000_000, 24 * 3_600_000);
//! let order = LeafOrder { identity, times, server_names: ServerNames::default() };
//! let issued = signer.issue(&order, &check_request(&request)?)?;
//! # let trust = Trust::new(signer.cluster().clone(), vec![signer.root().clone()])?;
//! # let leaf = trust.verify_leaf(&issued.der, godel_pki::leaves::LeafUsage::Client)?;
//! # assert_eq!(leaf.identity.role(), Role::Agent);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here opens a socket or reads a clock: callers say what time it is, in milliseconds since 1970. Random bytes come from the system.
//! Keys are P-256, and Ed25519 for persons' tokens; `ring` computes, `rustls-webpki` judges chains, `rcgen` writes certificates.
//!
//! # Modules
//!
//! - `asn1`: the fields of certificates and requests that `rustls-webpki` does not give out.
//! - `fingerprints`: what a root is recognised by.
//! - `fixtures`: clusters and leaves for tests.
//! - `join_tokens`: the secret with which a process gets its first leaf.
//! - `keys`: private keys of P-256 and Ed25519.
//! - `leaves`: what a leaf says, and the leaf that a process has of its own.
//! - `pem`: certificates and keys as text.
//! - `person_tokens`: what a person shows instead of a leaf.
//! - `private_files`: files that nobody else may read.
//! - `random`: random bytes of the system.
//! - `requests`: keys of leaves, and requests for a leaf.
//! - `roots`: what a cluster trusts.
//! - `seal`: the key that a signer is sealed with, and its file.
//! - `signer`: what issues leaves and signs tokens.
//! - `tls`: configurations of servers and clients, which follow changes of leaf and roots while they run.
//! - `yarn_tokens`: what clients of YARN show instead of a token.

mod asn1;
pub mod fingerprints;
#[cfg(test)]
mod fixtures;
pub mod join_tokens;
mod keys;
pub mod leaves;
pub mod pem;
pub mod person_tokens;
pub mod private_files;
pub mod random;
pub mod requests;
pub mod roots;
pub mod seal;
pub mod signer;
pub mod tls;
pub mod yarn_tokens;
