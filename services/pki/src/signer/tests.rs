use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use godel_identity::names::Role;

use super::*;
use crate::{
    fixtures::{DAY, NOW, order, signer, trust},
    leaves::{LeafUsage, PresentedLeaf},
    requests::{LeafKey, check_request},
};

fn issue(signer: &Signer, order: &LeafOrder) -> Result<IssuedLeaf, SignerError> {
    signer.issue(order, &LeafKey::generate().unwrap().public())
}

#[test]
fn a_leaf_says_what_was_ordered() {
    let signer = signer("c");
    for (key, is_for_servers) in
        [("state/main", true), ("scheduler/s1", true), ("agent/n1", false), ("agent/sim-*", false)]
    {
        let ordered = order(&signer, key);
        let request = LeafKey::generate().unwrap().request().unwrap();
        let issued = signer.issue(&ordered, &check_request(&request).unwrap()).unwrap();
        let leaf = PresentedLeaf::read(&issued.der).unwrap();
        assert_eq!(leaf.identity, ordered.identity);
        assert_eq!((leaf.times, leaf.times.issued_ms()), (ordered.times, NOW));
        assert_eq!(leaf.times.not_before_ms, NOW - 2 * DAY);
        assert_eq!(leaf.serial, issued.serial);
        assert_eq!((leaf.is_for_clients, leaf.is_for_servers), (true, is_for_servers), "{key}");
        assert!(issued.der.len() < 700, "{} bytes", issued.der.len());
    }
}

#[test]
fn every_leaf_has_a_number_of_its_own() {
    let signer = signer("c");
    let key = LeafKey::generate().unwrap();
    let [first, second] = [(); 2].map(|()| signer.issue(&order(&signer, "agent/n1"), &key.public()).unwrap());
    assert_ne!(first.serial, second.serial);
    assert_eq!(first.serial.len(), 32);
}

#[test]
fn a_server_has_names_for_other_tools() {
    let signer = signer("c");
    let mut ordered = order(&signer, "state/main");
    ordered.server_names = ServerNames {
        dns: vec!["localhost".to_owned(), "state.example.org".to_owned()],
        addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
    };
    let issued = issue(&signer, &ordered).unwrap();
    let parsed = webpki::EndEntityCert::try_from(&issued.der).unwrap();
    for name in ["localhost", "state.example.org", "127.0.0.1", "::1"] {
        let name = rustls::pki_types::ServerName::try_from(name).unwrap();
        assert_eq!(parsed.verify_is_valid_for_subject_name(&name), Ok(()), "{name:?}");
    }
    let other = rustls::pki_types::ServerName::try_from("other.example.org").unwrap();
    assert!(parsed.verify_is_valid_for_subject_name(&other).is_err());
    assert_eq!(PresentedLeaf::read(&issued.der).unwrap().identity.role(), Role::State);
}

#[test]
fn a_bad_order_is_refused() {
    let signer = signer("c");
    let good = order(&signer, "state/main");
    let named = |names: &[&str]| {
        let dns = names.iter().map(|name| (*name).to_owned()).collect();
        LeafOrder { server_names: ServerNames { dns, addresses: Vec::new() }, ..good.clone() }
    };
    for name in ["", "http://state", "state:7700", "a b", "ä.example", &"a.".repeat(200)] {
        let refusal = issue(&signer, &named(&[name])).unwrap_err();
        assert!(matches!(refusal, SignerError::DnsName(_)), "{name}: {refusal}");
    }
    let many = vec!["a"; N_SERVER_NAMES_MAX + 1];
    assert_eq!(issue(&signer, &named(&many)).unwrap_err(), SignerError::TooManyNames(N_SERVER_NAMES_MAX + 1));
    assert!(issue(&signer, &named(&many[1..])).is_ok());
    let agent = LeafOrder { server_names: named(&["localhost"]).server_names, ..order(&signer, "agent/n1") };
    assert_eq!(issue(&signer, &agent).unwrap_err(), SignerError::NoServer);
    let other = LeafOrder { identity: "spiffe://d/state/main".parse().unwrap(), ..good.clone() };
    assert!(matches!(issue(&signer, &other), Err(SignerError::OtherCluster { .. })));
    for (not_before_ms, not_after_ms) in [(2_000, 1_000), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        let times = LeafTimes { not_before_ms, not_after_ms };
        let refusal = issue(&signer, &LeafOrder { times, ..good.clone() }).unwrap_err();
        assert_eq!(refusal, SignerError::Times);
    }
    let last = LeafTimes { not_before_ms: 0, not_after_ms: 1_000 * LAST_SECOND };
    assert_eq!(
        PresentedLeaf::read(&issue(&signer, &LeafOrder { times: last, ..good }).unwrap().der).unwrap().times,
        last
    );
}

#[test]
fn a_sealed_signer_goes_on_signing() {
    let made = signer("c");
    let key = SealKey::new(&[1; 32]);
    let sealed = made.seal(&key).unwrap();
    assert!(sealed.len() < 1_000, "{} bytes", sealed.len());
    let opened = Signer::open(made.cluster().clone(), &sealed, key.id(), &key).unwrap();
    assert_eq!((opened.root(), opened.token_key()), (made.root(), made.token_key()));
    let issued = issue(&opened, &order(&opened, "state/main")).unwrap();
    assert!(trust(&[&made]).verify_leaf(&issued.der, LeafUsage::Server).is_ok());
}

#[test]
fn a_signer_is_opened_by_its_key_and_for_its_cluster() {
    let made = signer("c");
    let (key, other) = (SealKey::new(&[1; 32]), SealKey::new(&[2; 32]));
    let sealed = made.seal(&key).unwrap();
    let refusal = Signer::open(made.cluster().clone(), &sealed, key.id(), &other).unwrap_err();
    let SignerError::Sealed { sealed_by, own, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!((sealed_by.as_str(), own.as_str()), (key.id(), other.id()));
    assert!(refusal.to_string().contains("godel ca new"), "{refusal}");
    assert!(Signer::open("d".parse().unwrap(), &sealed, key.id(), &key).is_err());
    for plain in [b"".as_slice(), FORMAT, b"godel-signer-2\0\0\0\0\0\0\0", b"godel-signer-1\0\xff\xff"] {
        let sealed = key.seal(&purpose(made.cluster()), plain).unwrap();
        let refusal = Signer::open(made.cluster().clone(), &sealed, key.id(), &key).unwrap_err();
        assert_eq!(refusal, SignerError::Unreadable);
    }
}

#[test]
fn roots_of_one_cluster_have_names_of_their_own() {
    let (first, second) = (signer("c"), signer("c"));
    let subject =
        |signer: &Signer| webpki::EndEntityCert::try_from(signer.root().der()).unwrap().subject().to_vec();
    assert_ne!(subject(&first), subject(&second));
    assert_ne!(first.root().fingerprint(), second.root().fingerprint());
    assert!(first.root().der().len() < 500, "{} bytes", first.root().der().len());
}

#[test]
fn no_log_shows_a_key() {
    let made = signer("c");
    let shown = format!("{made:?} {:?} {:?}", SealKey::new(&[1; 32]), LeafKey::generate().unwrap());
    assert!(shown.len() < 300 && shown.contains("LeafKey(..)"), "{shown}");
}
