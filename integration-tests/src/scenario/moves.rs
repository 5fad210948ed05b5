//! Moves of running units, as the rescheduler asks the binder for them.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use godel_proto::v1;

use super::{expect::Mismatch, file::Move};
use crate::{
    cluster::Cluster,
    wait::{LIMIT, wait_for},
};

/// So long room is held for who moves.
const HOLD: Duration = Duration::from_secs(300);

/// Asks until the binder has answered: asked again, it answers the same.
pub(super) async fn move_units(cluster: &Cluster, of: &Move) -> Result<(), Mismatch> {
    let request = request(cluster, of).await;
    let request = request.map_err(|error| Mismatch::new("the move", "possible", format!("{error:#}")))?;
    let mut answers = Vec::new();
    wait_for("a binder that answers", LIMIT, async || {
        let mut binder = cluster.api.binder().await?;
        answers = binder.move_running_units(request.clone()).await?.into_inner().answers;
        anyhow::Ok(())
    })
    .await;
    let seen: Vec<String> = answers.iter().map(word).collect();
    let expected = match of.answers.0.as_slice() {
        [] => vec!["moved".to_owned(); of.ordinals.len()],
        expected => expected.to_vec(),
    };
    if seen == expected {
        return Ok(());
    }
    Err(Mismatch::new("the moves", expected.join(", "), format!("{answers:?}")))
}

/// The move of each replica as it is now.
async fn request(cluster: &Cluster, of: &Move) -> Result<v1::MoveRunningUnitsRequest> {
    let answer = cluster.api.get_unit(&of.unit).await?;
    let unit_id = answer.unit.as_ref().map_or(0, |unit| unit.unit_id);
    let node = v1::GetNodeRequest { name: of.to.clone() };
    let node = cluster.api.nodes().get_node(node).await?.into_inner().node.context("no node")?;
    let to_node_id = node.spec.context("a node without a spec")?.node_id;
    let mut moves = Vec::with_capacity(of.ordinals.len());
    for ordinal in &of.ordinals {
        let running = answer.running_units.iter().find(|running| running.ordinal == *ordinal);
        let Some(running) = running else { bail!("no replica {ordinal} of {}", of.unit) };
        let incarnation = running.incarnation;
        moves.push(v1::RequestedMove {
            unit_id,
            ordinal: *ordinal,
            incarnation,
            to_node_id,
            ..Default::default()
        });
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(v1::MoveRunningUnitsRequest {
        movement: of.movement.clone(),
        moves,
        expires_ms: i64::try_from((now + HOLD).as_millis())?,
        read_revision: cluster.api.store_status().await?.revision,
        store_id: 0,
    })
}

/// `moved`, or the reason as codes of rejections name it.
fn word(answer: &v1::MoveAnswer) -> String {
    let Some(refused) = &answer.refused else { return "moved".to_owned() };
    let name = refused.reason().as_str_name();
    name.trim_start_matches("REJECTION_REASON_").to_lowercase().replace('_', "-")
}
