//! `godel node drain`.

use std::{collections::BTreeMap, time::Duration};

use godel_client::{
    client::Client,
    exit::{Code, Failure},
    output::{self, Format, Paint, are, count, one_or, shown},
    views::DrainView,
};
use godel_proto::v1;
use tokio::time::{Instant, sleep};

use super::{change::update_all, get};
use crate::args::node::DrainArgs;

/// Between two looks at nodes that are waited for.
const POLL: Duration = Duration::from_millis(500);
/// Units that hold up a drain, in a message.
const BLOCKS_SHOWN: usize = 5;

pub(super) async fn run(client: &Client, drain: DrainArgs, format: Format) -> Result<(), Failure> {
    let DrainArgs { nodes, deadline, force, wait, timeout } = drain;
    let deadline = if force { Some(Duration::ZERO) } else { deadline };
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let order = v1::DrainOrder { deadline_in_ms: deadline.map(ms) };
    let request = v1::UpdateNodeRequest { drain: Some(order), ..v1::UpdateNodeRequest::default() };
    let drained = update_all(client, nodes, &request, "is drained", format).await;
    match drained {
        Ok(names) if wait => until_empty(client, names, timeout).await,
        drained => drained.map(drop),
    }
}

/// What of a drain is left, for `describe`.
pub(super) async fn describe(client: &Client, node_id: u32, drain: DrainView, paint: Paint) -> String {
    let mut text = format!("\n{}\n{drain}\n", paint.bold("drain"));
    if drain.deadline_ms > 0 {
        let at = std::time::UNIX_EPOCH + Duration::from_millis(drain.deadline_ms.unsigned_abs());
        text.push_str(&format!("deadline {}\n", humantime::format_rfc3339_seconds(at)));
    }
    match blocks(client, node_id).await {
        Ok(blocks) => blocks.iter().for_each(|block| {
            text.push_str(&format!("waits for {}: {}\n", shown(&block.unit_name), shown(&block.reason)));
        }),
        // The rest of the description stands.
        Err(failure) => text.push_str(&format!("reason not known: {}\n", failure.message)),
    }
    text
}

async fn blocks(client: &Client, node_id: u32) -> Result<Vec<v1::DrainBlock>, Failure> {
    let call =
        client.dispatch(async |mut dispatch| dispatch.get_drain(v1::GetDrainRequest { node_id }).await);
    Ok(call.await?.blocked)
}

/// Waits until nothing runs on the nodes any more, or one of them is drained no longer.
pub(crate) async fn until_empty(
    client: &Client,
    names: Vec<String>,
    timeout: Duration,
) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    let n_nodes = names.len();
    // Running units left by node.
    let mut left: BTreeMap<String, u32> = names.into_iter().map(|name| (name, u32::MAX)).collect();
    let mut ids: BTreeMap<String, u32> = BTreeMap::new();
    let mut n_first: BTreeMap<String, u32> = BTreeMap::new();
    let bar = output::progress(0, "left");
    loop {
        for (name, n_left) in left.iter_mut().filter(|(_, n_left)| **n_left > 0) {
            match get(client, name).await {
                Ok(answer) => {
                    let node = answer.node.unwrap_or_default();
                    if node.spec.is_none_or(|spec| spec.drain.is_none()) {
                        bar.finish_and_clear();
                        return Err(Failure::failed(format!("node {} is no longer drained", shown(name))));
                    }
                    *n_left = node.running_units;
                    n_first.entry(name.clone()).or_insert(node.running_units);
                    ids.insert(name.clone(), node.node_id);
                }
                // Nothing runs on a node that is deleted.
                Err(failure) if failure.code == Code::NotFound => *n_left = 0,
                // A restart of the server is waited for as well.
                Err(failure) if failure.code == Code::Unreachable && Instant::now() < deadline => {}
                Err(failure) => return Err(failure),
            }
        }
        let n_left: u64 =
            left.values().map(|n_left| u64::from(*n_left)).filter(|n| *n < u64::from(u32::MAX)).sum();
        let n_all: u64 = n_first.values().map(|n| u64::from(*n)).sum();
        let n_empty = left.values().filter(|n_left| **n_left == 0).count();
        bar.set_length(n_all);
        bar.set_position(n_all.saturating_sub(n_left));
        bar.set_message(format!("{n_empty} of {} {} empty", count(n_nodes, "node"), are(n_nodes)));
        if n_empty == n_nodes {
            bar.finish_and_clear();
            let left = format!("{} {} left", count(n_all, "running unit"), one_or(n_all, "has", "have"));
            output::say(format!("{} {} empty, {left}", count(n_nodes, "node"), are(n_nodes)));
            return Ok(());
        }
        if Instant::now() >= deadline {
            bar.finish_and_clear();
            let mut why = Vec::new();
            for (_, id) in ids.iter().filter(|(name, _)| left.get(*name).is_some_and(|n_left| *n_left > 0)) {
                why.extend(blocks(client, *id).await.unwrap_or_default());
            }
            let n_more = why.len().saturating_sub(BLOCKS_SHOWN);
            let mut why: Vec<String> = why
                .iter()
                .take(BLOCKS_SHOWN)
                .map(|block| format!("{}: {}", shown(&block.unit_name), shown(&block.reason)))
                .collect();
            if n_more > 0 {
                why.push(format!("and {}", count(n_more, "further unit")));
            }
            let within = humantime::format_duration(timeout);
            let nodes = count(n_nodes, "node");
            let n_full = n_nodes - n_empty;
            let said = format!("timeout after {within}: {n_full} of {nodes} {} not empty", are(n_full));
            let hint = if why.is_empty() { "the drain continues".to_owned() } else { why.join("\n") };
            return Err(Failure::new(Code::Timeout, said).hint(hint));
        }
        sleep(POLL).await;
    }
}
