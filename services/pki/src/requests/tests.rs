use proptest::prelude::*;

use super::*;
use crate::{
    fixtures::{order, signer},
    leaves::{OwnLeaf, PresentedLeaf},
};

/// Requests of OpenSSL that ask for the name `CN=root`, the identity of a state, and a DNS name.
const P256: &str = include_str!("p256.pem");
const ED25519_REQUEST: &str = include_str!("ed.pem");
const P384: &str = include_str!("p384.pem");
const RSA: &str = include_str!("rsa.pem");
const P256_SHA384: &str = include_str!("p256-384.pem");

#[test]
fn requests_of_other_tools_are_read_and_their_names_are_not_followed() {
    let signer = signer("c");
    for request in [P256, ED25519_REQUEST] {
        let key = check_request(request.as_bytes()).unwrap();
        let issued = signer.issue(&order(&signer, "agent/n1"), &key).unwrap();
        let leaf = PresentedLeaf::read(&issued.der).unwrap();
        assert_eq!(leaf.identity.key(), "agent/n1");
        assert!(!leaf.is_for_servers);
        let der = String::from_utf8_lossy(&issued.der).into_owned();
        assert!(!der.contains("evil") && !der.contains("root/") && !der.contains("state/main"));
        let spaced = format!("\n  {request}\n");
        assert_eq!(check_request(spaced.as_bytes()), Ok(key));
    }
}

#[test]
fn keys_of_other_kinds_are_refused() {
    for request in [P384, RSA, P256_SHA384] {
        assert_eq!(check_request(request.as_bytes()), Err(BadRequest::OtherKey));
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let request = LeafKey::generate().unwrap().request().unwrap();
    for bad in [
        b"".as_slice(),
        b"-----BEGIN CERTIFICATE REQUEST-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        &request[1..],
        &request[..request.len() - 1],
        &[request.as_slice(), b"\0"].concat(),
        &[0x30; 1_000],
        signer("c").root().der(),
    ] {
        assert_eq!(check_request(bad), Err(BadRequest::Encoding), "{bad:?}");
    }
    let long = vec![0x30; REQUEST_BYTES_MAX + 1];
    assert_eq!(check_request(&long), Err(BadRequest::Long(REQUEST_BYTES_MAX + 1)));
}

#[test]
fn a_request_is_signed_by_its_own_key() {
    let (own, other) = (LeafKey::generate().unwrap(), LeafKey::generate().unwrap());
    let request = own.request().unwrap();
    // The key of somebody else, in the place of the own one: without that key nobody gets a leaf for it.
    let key = own.public();
    let at = request.windows(key.bytes.len()).position(|window| window == key.bytes).unwrap();
    let mut stolen = request.clone();
    stolen[at..at + key.bytes.len()].copy_from_slice(&other.public().bytes);
    assert_eq!(check_request(&stolen), Err(BadRequest::Signature));
    assert_eq!(check_request(&request), Ok(key));
}

#[test]
fn a_key_is_read_as_it_is_written() {
    let signer = signer("c");
    let made = LeafKey::generate().unwrap();
    let read = LeafKey::read_pem(&made.to_pem()).unwrap();
    assert_eq!(read.public(), made.public());
    let issued = signer.issue(&order(&signer, "agent/n1"), &made.public()).unwrap();
    assert!(OwnLeaf::new(issued.der, signer.root(), &read).is_ok());
    for bad in ["", P256, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        assert_eq!(LeafKey::read_pem(bad).unwrap_err(), BadKey::Encoding);
    }
}

proptest! {
    /// No bytes that somebody sends end the process, and no changed request is one of the same key.
    #[test]
    fn a_changed_request_is_refused(at in any::<prop::sample::Index>(), change in 1_u8..) {
        let key = LeafKey::generate().unwrap();
        let mut request = key.request().unwrap();
        let at = at.index(request.len());
        request[at] ^= change;
        prop_assert!(check_request(&request).is_err());
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(check_request(&bytes).is_err());
        prop_assert!(PresentedLeaf::read(&bytes.into()).is_err());
    }
}
