use proptest::prelude::*;
use rcgen::{CertificateParams, Issuer};

use super::*;
use crate::{
    fixtures::{DAY, NOW, order, own, signer, trust},
    keys::KeyPair,
    requests::LeafKey,
    signer::{LeafOrder, Signer},
};
use godel_identity::leaves::LeafTimes;

fn leaf(signer: &Signer, key: &str) -> CertificateDer<'static> {
    signer.issue(&order(signer, key), &LeafKey::generate().unwrap().public()).unwrap().der
}

#[test]
fn a_leaf_is_for_what_its_role_does() {
    let signer = signer("c");
    let trust = trust(&[&signer]);
    let (agent, state) = (leaf(&signer, "agent/n1"), leaf(&signer, "state/main"));
    assert_eq!(trust.verify_leaf(&agent, LeafUsage::Client).unwrap().identity.key(), "agent/n1");
    assert!(trust.verify_leaf(&state, LeafUsage::Client).is_ok());
    assert!(trust.verify_leaf(&state, LeafUsage::Server).is_ok());
    let refusal = trust.verify_leaf(&agent, LeafUsage::Server).unwrap_err();
    assert_eq!(refusal, UnfitLeaf::OtherUsage { usage: LeafUsage::Server });
}

#[test]
fn a_leaf_of_another_root_is_foreign() {
    let (own, imitation, other) = (signer("c"), signer("c"), signer("d"));
    let trust = trust(&[&own]);
    for signer in [&imitation, &other] {
        let refusal = trust.verify_leaf(&leaf(signer, "state/main"), LeafUsage::Server).unwrap_err();
        assert!(matches!(refusal, UnfitLeaf::Foreign { .. }), "{refusal}");
    }
    // A root that two clusters trust gives neither the names of the other.
    let both = Trust::new("d".parse().unwrap(), vec![own.root().clone()]).unwrap();
    let refusal = both.verify_leaf(&leaf(&own, "state/main"), LeafUsage::Server).unwrap_err();
    assert!(matches!(refusal, UnfitLeaf::OtherCluster { .. }), "{refusal}");
}

#[test]
fn two_roots_are_trusted_while_one_replaces_the_other() {
    let (old, new) = (signer("c"), signer("c"));
    let (of_old, of_new) = (leaf(&old, "state/main"), leaf(&new, "state/main"));
    for (trusted, old_counts, new_counts) in
        [(trust(&[&old]), true, false), (trust(&[&old, &new]), true, true), (trust(&[&new]), false, true)]
    {
        assert_eq!(trusted.verify_leaf(&of_old, LeafUsage::Server).is_ok(), old_counts, "{trusted:?}");
        assert_eq!(trusted.verify_leaf(&of_new, LeafUsage::Client).is_ok(), new_counts, "{trusted:?}");
        assert_eq!(trusted.has_root(old.root().fingerprint()), old_counts);
    }
}

#[test]
fn times_are_not_judged() {
    let signer = signer("c");
    let trust = trust(&[&signer]);
    for issued_ms in [0, 3 * DAY, NOW - 1_000 * DAY, NOW + 1_000 * DAY] {
        let ordered =
            LeafOrder { times: LeafTimes::of_issue(issued_ms, DAY), ..order(&signer, "state/main") };
        let issued = signer.issue(&ordered, &LeafKey::generate().unwrap().public()).unwrap();
        let leaf = trust.verify_leaf(&issued.der, LeafUsage::Server).unwrap();
        assert_eq!(leaf.times, ordered.times);
    }
}

#[test]
fn a_leaf_issues_no_leaves() {
    let signer = signer("c");
    let trust = trust(&[&signer]);
    let key = KeyPair::generate_p256().unwrap();
    // Whose leaf it is, says that it issued another one.
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "state");
    params.serial_number = Some(7.into());
    let name = "spiffe://c/state/main".try_into().unwrap();
    params.subject_alt_names = vec![rcgen::SanType::URI(name)];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.is_ca = rcgen::IsCa::ExplicitNoCa;
    let forged = params.signed_by(&key, &Issuer::from_params(&params, &key)).unwrap();
    let refusal = trust.verify_leaf(forged.der(), LeafUsage::Server).unwrap_err();
    assert!(matches!(refusal, UnfitLeaf::Foreign { .. }), "{refusal}");
}

#[test]
fn a_root_is_no_leaf() {
    let signer = signer("c");
    for usage in [LeafUsage::Client, LeafUsage::Server] {
        let refusal = trust(&[&signer]).verify_leaf(signer.root().der(), usage).unwrap_err();
        assert_eq!(refusal, UnfitLeaf::Unreadable(BadLeaf::Identities(0)));
    }
}

#[test]
fn trust_is_read_as_it_is_written() {
    let (first, second) = (signer("c"), signer("c"));
    let both = trust(&[&first, &second]);
    let read = Trust::read_pem("c".parse().unwrap(), &both.to_pem()).unwrap();
    assert_eq!(read.roots(), both.roots());
    let read = |text: &str| Trust::read_pem("c".parse().unwrap(), text).unwrap_err();
    assert_eq!(read("nothing"), BadTrust::Pem(BadPem::NoCertificate));
    assert_eq!(read(&both.to_pem().repeat(3)), BadTrust::Number(6));
    assert_eq!(Trust::new("c".parse().unwrap(), Vec::new()), Err(BadTrust::Number(0)));
    assert_eq!(RootCert::read(vec![0; 400]), Err(BadTrust::Root));
    assert_eq!(RootCert::read(vec![0; ROOT_BYTES_MAX + 1]), Err(BadTrust::Root));
}

#[test]
fn an_own_leaf_is_read_as_it_is_written() {
    let signer = signer("c");
    let key = LeafKey::generate().unwrap();
    let issued = signer.issue(&order(&signer, "state/main"), &key.public()).unwrap();
    let made = crate::leaves::OwnLeaf::new(issued.der, signer.root(), &key).unwrap();
    let read = crate::leaves::OwnLeaf::read_pem(&made.to_pem(), &key).unwrap();
    assert_eq!((read.leaf(), read.to_pem()), (made.leaf(), made.to_pem()));
    let other = crate::leaves::OwnLeaf::read_pem(&made.to_pem(), &LeafKey::generate().unwrap()).unwrap_err();
    assert_eq!(other, crate::leaves::BadOwnLeaf::OtherKey);
    assert!(!format!("{:?}", own(&signer, "state/main")).contains("key:"));
}

proptest! {
    /// Whatever is changed of a leaf, it does not count.
    #[test]
    fn a_changed_leaf_is_refused(at in any::<prop::sample::Index>(), change in 1_u8..) {
        let signer = signer("c");
        let mut bytes = leaf(&signer, "state/main").to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert!(trust(&[&signer]).verify_leaf(&bytes.into(), LeafUsage::Server).is_err());
    }
}
