//! What takes long and happens outside of the engine: calls of the binder, looks at files, and at what running units use.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::SystemTime,
};

use godel_base::{ids::UnitId, time::Millis};
use godel_core_rescheduler::{MeasuredUse, NodeUseTable, RescheduleKind, UsageHistory, UsageTable};
use godel_core_rescheduler_leader::{MovesAnswered, PlanDone, Traffic, WriteFailure, WriteTicket};
use godel_kit::{client::Channel, message::RECEIVED_BYTES_MAX, task};
use godel_proto::v1::{self, node_service_client::NodeServiceClient};
use tonic::Status;

use super::{Engine, outbox::GangRefusals};
use crate::config::Config;

/// Outcomes that wait for the engine: one of each kind at most.
pub(super) const N_OUTCOMES: usize = 16;
/// Largest file of traffic, bytes.
const TRAFFIC_BYTES_MAX: u64 = 64 << 20;

/// Something that took a while has ended.
pub(super) enum OutsideOutcome {
    Written(WriteTicket, Result<(), WriteFailure>),
    Plan(Box<PlanDone>),
    Moves(MovesAnswered),
    Files(Box<FilesRead>),
    Usage(UsageRead),
    Gang(GangRefusals),
}

/// What running units use.
pub(super) struct UsageRead {
    history: UsageHistory,
    /// Of running units, and of others on nodes; `None`: it could not be read.
    usage: Option<(UsageTable, NodeUseTable)>,
}

/// What files say.
pub(super) struct FilesRead {
    /// `None`: it is as before, or there is none.
    config: Option<Result<Config, String>>,
    /// `None`: it is as before.
    traffic: Option<Result<(Traffic, SystemTime), String>>,
}

/// When was looked outside last.
#[derive(Debug, Default)]
pub(super) struct OutsideState {
    files_ms: i64,
    reads_files: bool,
    /// A configuration that was read once, and is not the one in force.
    config_seen: Option<Config>,
    traffic_at: Option<(PathBuf, SystemTime)>,
    usage_ms: i64,
    reads_usage: bool,
    /// What was measured of late; empty while somebody reads.
    usage_history: UsageHistory,
    traffic_fault: String,
}

/// Whether a value was read twice in a row: a file that is being written may be read half, or empty.
fn is_settled<T: Clone + PartialEq>(seen: &mut Option<T>, read: &T) -> bool {
    let is_same = seen.as_ref() == Some(read);
    *seen = (!is_same).then(|| read.clone());
    is_same
}

fn is_due(last_ms: i64, now_ms: i64, every_ms: u64) -> bool {
    last_ms == 0 || now_ms.saturating_sub(last_ms) >= i64::try_from(every_ms).unwrap_or(i64::MAX)
}

impl Engine {
    pub(super) fn on_outcome(&mut self, outcome: OutsideOutcome) {
        let now = self.now_ms();
        match outcome {
            OutsideOutcome::Written(ticket, answer) => {
                self.leader.on_written(ticket, answer, now, &mut self.out)
            }
            OutsideOutcome::Plan(done) => self.leader.on_plan(*done, now, &mut self.out),
            OutsideOutcome::Moves(answered) => {
                self.out.crash.hit("rescheduler.after-move");
                self.leader.on_moves_answered(answered, now);
            }
            OutsideOutcome::Files(read) => self.on_files(*read),
            OutsideOutcome::Usage(read) => self.on_usage(read),
            OutsideOutcome::Gang(GangRefusals { gang, refused_by }) => {
                let refused_by = refused_by.as_ref().map(|plugins| plugins.iter().map(String::as_str));
                self.leader.on_gang(gang, refused_by, now, &mut self.out);
            }
        }
    }

    /// Looks at files and at the usage when it is time.
    pub(super) fn look_outside(&mut self) {
        let now = self.now_ms();
        let config = &self.config;
        if !self.outside.reads_files && is_due(self.outside.files_ms, now, config.reload_interval.ms()) {
            (self.outside.reads_files, self.outside.files_ms) = (true, now);
            self.read_files();
        }
        // A policy that is not enabled is planned, and wants it as well.
        let mut policies = self.leader.manager().config().policies.values();
        let balances = policies.any(|policy| matches!(policy.kind, RescheduleKind::LoadBalance(_)));
        if (config.other_load || balances)
            && self.leader.leads()
            && !self.outside.reads_usage
            && is_due(self.outside.usage_ms, now, config.usage_interval.ms())
        {
            (self.outside.reads_usage, self.outside.usage_ms) = (true, now);
            self.read_usage(balances);
        }
    }

    /// Reads what running units and others use; what each running unit used before is kept only for policies that balance load.
    fn read_usage(&mut self, balances: bool) {
        let config = &self.config;
        let (window_ms, percent) = (config.usage_window.ms(), config.usage_percentile);
        let now = Millis(u64::try_from(self.now_ms()).unwrap_or(0));
        let mut history = std::mem::take(&mut self.outside.usage_history);
        let (state, sender) = (self.state.clone(), self.out.outcomes.clone());
        task::spawn("rescheduler.usage", async move {
            let read = match list_usage(state).await {
                Ok((measured, others)) => {
                    let looked = tokio::task::spawn_blocking(move || {
                        history.look_at_nodes(now, window_ms, &others);
                        history.look(now, if balances { window_ms } else { 0 }, &measured);
                        let usage = Some((history.percentile(percent), history.percentile_of_nodes(percent)));
                        UsageRead { history, usage }
                    });
                    looked
                        .await
                        .unwrap_or_else(|_| UsageRead { history: UsageHistory::default(), usage: None })
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), why = status.message(), "the usage is not known");
                    UsageRead { history, usage: None }
                }
            };
            // The engine may be gone.
            let _ = sender.send(OutsideOutcome::Usage(read)).await;
        });
    }

    fn read_files(&self) {
        let reload = self.reload.clone();
        let (path, n_max) = (self.config.traffic_file.clone(), self.config.traffic_max);
        let known = self.outside.traffic_at.clone();
        let sender = self.out.outcomes.clone();
        task::spawn("rescheduler.files", async move {
            let read = tokio::task::spawn_blocking(move || FilesRead {
                config: reload.map(|reload| reload()),
                traffic: path.and_then(|path| read_traffic(&path, known.as_ref(), n_max)),
            });
            let read = read.await.unwrap_or(FilesRead { config: None, traffic: None });
            // The engine may be gone.
            let _ = sender.send(OutsideOutcome::Files(Box::new(read))).await;
        });
    }

    fn on_files(&mut self, FilesRead { config, traffic }: FilesRead) {
        self.outside.reads_files = false;
        match config {
            Some(Ok(config)) if config == self.config && self.faults.is_empty() => {
                self.outside.config_seen = None;
            }
            Some(Ok(config)) if is_settled(&mut self.outside.config_seen, &config) => {
                let before = self.leader.manager().config().clone();
                self.configure(config);
                if *self.leader.manager().config() != before {
                    tracing::info!("the configuration has changed");
                }
            }
            Some(Err(why)) => {
                self.outside.config_seen = None;
                self.refuse_config(vec![why]);
            }
            Some(Ok(_)) | None => {}
        }
        match traffic {
            Some(Ok((traffic, at))) => {
                self.outside.traffic_fault.clear();
                self.outside.traffic_at = self.config.traffic_file.clone().map(|path| (path, at));
                self.leader.traffic_mut().replace_read(traffic);
            }
            Some(Err(why)) if why != self.outside.traffic_fault => {
                tracing::warn!(why, "the file of traffic is not read");
                self.outside.traffic_fault = why;
            }
            Some(Err(_)) | None => {}
        }
    }

    /// Takes what was measured; where nothing could be read, what is known stays.
    fn on_usage(&mut self, UsageRead { history, usage }: UsageRead) {
        self.outside.reads_usage = false;
        self.outside.usage_history = history;
        if let Some((usage, others)) = usage {
            self.leader.picture_mut().set_usage(usage, others);
        }
    }
}

/// Reads the file of traffic if it is another one than before.
fn read_traffic(
    path: &Path,
    known: Option<&(PathBuf, SystemTime)>,
    n_max: usize,
) -> Option<Result<(Traffic, SystemTime), String>> {
    let shown = path.display();
    let failed = |error: std::io::Error| format!("{shown}: {error}");
    let meta = match std::fs::metadata(path).map_err(failed) {
        Ok(meta) => meta,
        Err(why) => return Some(Err(why)),
    };
    let at = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    if known.is_some_and(|(known, time)| known == path && *time == at) {
        return None;
    }
    if meta.len() > TRAFFIC_BYTES_MAX {
        return Some(Err(format!(
            "{shown}: it has {} bytes, at most {TRAFFIC_BYTES_MAX} are read",
            meta.len()
        )));
    }
    let read = std::fs::read_to_string(path).map_err(failed).and_then(|text| {
        Traffic::parse(&text, n_max).map(|traffic| (traffic, at)).map_err(|why| format!("{shown}: {why}"))
    });
    Some(read)
}

async fn list_usage(state: Channel) -> Result<(UsageTable, NodeUseTable), Status> {
    let mut client = NodeServiceClient::new(state).max_decoding_message_size(RECEIVED_BYTES_MAX);
    let mut stream = client.list_run_usage(v1::ListRunUsageRequest {}).await?.into_inner();
    let (mut usage, mut nodes) = (UsageTable::default(), BTreeMap::new());
    while let Some(of_node) = stream.message().await? {
        note_usage(of_node, &mut usage, &mut nodes);
    }
    let others = nodes.into_iter().map(|(node, left)| (node, left.measured())).collect();
    Ok((usage, others))
}

/// What is used of a node: milli-cores, and bits per second that it receives and sends.
#[derive(Clone, Copy, Debug, Default)]
struct MeasuredNodeUse([i64; 3]);

impl MeasuredNodeUse {
    fn measured(self) -> MeasuredUse {
        let Self([cpu, received, sent]) = self;
        MeasuredUse { cpu_milli: cpu.max(0), network_bps: received.max(sent).max(0) }
    }
}

/// Takes what running units of a node use, and what is left of what the node uses, if that is measured.
fn note_usage(
    of_node: v1::ListRunUsageResponse,
    usage: &mut UsageTable,
    nodes: &mut BTreeMap<String, MeasuredNodeUse>,
) {
    let v1::ListRunUsageResponse { node, running, unit_names: _, cpu_milli, network } = of_node;
    if let Some(cpu_milli) = cpu_milli {
        let network = network.unwrap_or_default();
        nodes.insert(node.clone(), MeasuredNodeUse([cpu_milli, network.received, network.sent]));
    }
    // The messages of a node come in a row, the first one with what the node uses.
    let mut left = nodes.get_mut(&node);
    for run in running {
        let network = run.network.unwrap_or_default();
        let used = MeasuredNodeUse([run.cpu_milli, network.received, network.sent]);
        if let Some(MeasuredNodeUse(left)) = &mut left {
            left.iter_mut().zip(used.0).for_each(|(left, used)| *left = left.saturating_sub(used.max(0)));
        }
        usage.entry(UnitId(run.unit_id)).or_default().insert(run.ordinal, used.measured());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_use_what_running_units_leave_of_the_use_of_a_node() {
        let rate = |received, sent| Some(v1::NetworkRate { received, sent });
        let run = |ordinal, cpu_milli, network| v1::RunUsage {
            unit_id: 1,
            ordinal,
            cpu_milli,
            network,
            ..v1::RunUsage::default()
        };
        let message = |node: &str, cpu_milli, network, running| v1::ListRunUsageResponse {
            node: node.to_owned(),
            running,
            cpu_milli,
            network,
            ..v1::ListRunUsageResponse::default()
        };
        let (mut usage, mut nodes) = (UsageTable::default(), BTreeMap::new());
        for one in [
            message("a", Some(1_000), rate(90, 50), vec![run(0, 300, rate(80, 10))]),
            message("a", None, None, vec![run(1, 200, None)]),
            // Looks at a node and at its running units are not of one moment.
            message("b", Some(100), rate(0, 0), vec![run(2, 150, None)]),
            message("c", Some(700), rate(1, 2), Vec::new()),
            message("simulated", None, None, vec![run(3, 5, None)]),
        ] {
            note_usage(one, &mut usage, &mut nodes);
        }
        let others: Vec<_> = nodes
            .into_iter()
            .map(|(node, left)| (node, left.measured().cpu_milli, left.measured().network_bps))
            .collect();
        let expected = [("a", 500, 40), ("b", 0, 0), ("c", 700, 2)];
        assert_eq!(others, expected.map(|(node, cpu, network)| (node.to_owned(), cpu, network)));
        let cpu: Vec<i64> = usage[&UnitId(1)].values().map(|used| used.cpu_milli).collect();
        assert_eq!(cpu, [300, 200, 150, 5]);
    }

    #[test]
    fn what_is_read_once_between_others_does_not_count() {
        let mut seen = None;
        // A file that is empty for a moment, and then has something else.
        let read = [1, 1, 0, 2, 2, 0, 2, 2];
        let settled = read.map(|value| is_settled(&mut seen, &value));
        assert_eq!(settled, [false, true, false, false, true, false, false, true]);
    }
}
