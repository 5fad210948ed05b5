//! Every method that the faces serve has its row among the permissions, and every row its method.

use std::collections::BTreeSet;

use godel_hadoop::Protocol;
use godel_identity::needs::YARN_NEEDS;

use super::{
    super::{admin, client, master},
    *,
};
use crate::callers::short_name;

#[tokio::test]
async fn every_method_has_its_row() {
    let rig = Rig::new(FaceSettings::default()).await;
    let (manager, tokens) = (Arc::clone(&rig.manager), rig.tokens.clone());
    let nodes = NodeCalls::new(tokens.clone());
    let clock = SystemClock::shared();
    let clients = client::ClientFace { manager: manager.clone(), tokens: tokens.clone(), nodes, clock };
    let masters = master::MasterFace::new(manager.clone(), tokens);
    let [administration, availability] =
        admin::protocols(admin::AdminFace::new(manager, FaceSettings::default()));
    let protocols = [client::protocol(clients), master::protocol(masters), administration, availability];
    let row = |protocol: &Protocol, method| format!("hadoop/{}/{method}", short_name(protocol.name()));
    let served: BTreeSet<String> = protocols
        .iter()
        .flat_map(|protocol| protocol.methods().map(|method| row(protocol, method)))
        .collect();
    let rows = YARN_NEEDS.iter().map(|(path, _)| (*path).to_owned());
    let rows: BTreeSet<String> = rows.filter(|path| path.starts_with("hadoop/")).collect();
    assert_eq!(served, rows);
}
