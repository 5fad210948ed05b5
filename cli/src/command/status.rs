//! `godel status`.

use std::collections::BTreeMap;

use godel_base::{
    quantity,
    resources::{CPU, MEMORY},
};
use godel_kit::{config::HumanDuration, informer::UNREAD_COUNTER};
use godel_proto::v1;
use serde::Serialize;

use godel_client::{
    client::Client,
    doctor::Standing,
    exit::Failure,
    output::{self, Format, Paint, shown},
    view,
    views::amounts,
};

/// The control plane as JSON.
#[derive(Serialize)]
struct StatusView {
    address: String,
    members: Vec<MemberView>,
    /// Absent if state is older than this program.
    #[serde(skip_serializing_if = "Option::is_none")]
    security: Option<SecurityView>,
    store: StoreView,
    #[serde(skip_serializing_if = "Option::is_none")]
    dispatcher: Option<DispatcherView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binder: Option<BinderView>,
}

view! {
    struct MemberView from (member: v1::Member) with {
        let counters = member.status.unwrap_or_default().counters;
    } {
        lease: String = member.lease,
        address: String = member.address,
        holder: String = member.holder,
        epoch: u64 = member.epoch,
        remaining_ms: u32 = member.remaining_ms,
        /// Who would hold it if its holder did not.
        standbys: Vec<StandbyView> = member.standbys.into_iter().map(StandbyView::from).collect(),
        /// Records that its version cannot read.
        unreadable_records: u64 = counters.get(UNREAD_COUNTER).copied().unwrap_or(0),
    }
}

view! {
    struct StandbyView from (standby: v1::Standby) {
        address: String = standby.address,
        holder: String = standby.holder,
    }
}

view! {
    struct SecurityView from (security: v1::StateSecurity) with {
        let tls = tls_name(security.tls());
    } {
        /// `off`, `migrate` or `on`, as in `state.tls`.
        tls: &'static str = tls,
        plain_text_connections: u64 = security.plain_text_connections,
        /// By the standing of their last certificates.
        identities: Option<BTreeMap<&'static str, u64>> = security.identities.map(by_standing),
    }
}

view! {
    struct StoreView from (store: v1::GetStoreStatusResponse) {
        store_id: u64 = store.store_id,
        engine: String = store.engine,
        revision: u64 = store.revision,
        floor_revision: u64 = store.floor_revision,
        disk_bytes: u64 = store.disk_bytes,
        log_bytes: u64 = store.log_bytes,
        history_bytes: u64 = store.history_bytes,
        history_age_ms: u64 = store.history_age_ms,
        live_bytes: u64 = store.live_bytes,
        nodes: u64 = store.nodes,
        sessions: u64 = store.sessions,
        units: u64 = store.units,
        rows: u64 = store.rows,
        commits: u64 = store.commits,
        watchers: u64 = store.watchers,
        stale_epoch_refusals: u64 = store.stale_epoch_refusals,
        full: bool = store.full,
        /// Why commits wait; absent: they do not.
        #[serde(skip_serializing_if = "Option::is_none")]
        waiting_for: Option<String> = Some(store.waiting_for).filter(|why| !why.is_empty()),
        /// Measured by agents, over all nodes.
        usage: BTreeMap<String, i64> = amounts(store.usage.as_ref()),
        guaranteed_usage: BTreeMap<String, i64> = amounts(store.guaranteed_usage.as_ref()),
        capacity: BTreeMap<String, i64> = amounts(store.capacity.as_ref()),
    }
}

view! {
    struct DispatcherView from (status: v1::GetDispatcherStatusResponse) with {
        let mode = mode_name(status.partition_mode());
    } {
        epoch: u64 = status.epoch,
        units: u64 = status.units,
        queued_units: u64 = status.queued_units,
        dispatched_units: u64 = status.dispatched_units,
        parked_units: u64 = status.parked_units,
        submitted: u64 = status.submitted,
        redispatched: u64 = status.redispatched,
        repairs: u64 = status.repairs,
        nodes: u64 = status.nodes,
        nodes_not_ready: u64 = status.nodes_not_ready,
        evictions_paused: bool = status.evictions_paused,
        pauses: Vec<PauseView> = status.pauses.into_iter().map(PauseView::from).collect(),
        partition_mode: &'static str = mode,
        partition_by_hand: bool = status.partition_by_hand,
        partition_reason: String = status.partition_reason,
        partition_change_time_ms: i64 = status.partition_change_time_ms,
        phases: BTreeMap<String, u64> = status.phases.into_iter().filter(|(_, n)| *n > 0).collect(),
        /// What running units that are bound ask for, and what all nodes have; devices by their kind, in thousandths.
        allocated: BTreeMap<String, i64> = amounts(status.allocated.as_ref()),
        capacity: BTreeMap<String, i64> = amounts(status.capacity.as_ref()),
    }
}

view! {
    struct PauseView from (pause: v1::Pause) {
        scope: String = pause.scope,
        since_ms: i64 = pause.since_ms,
        reason: String = pause.reason,
    }
}

view! {
    struct BinderView from (status: v1::GetBinderStatusResponse) {
        epoch: u64 = status.epoch,
        decisions: u64 = status.decisions,
        bound: u64 = status.bound,
        rejected: BTreeMap<String, u64> = status.rejected.into_iter().filter(|(_, n)| *n > 0).collect(),
        txns: u64 = status.txns,
        txns_refused: u64 = status.txns_refused,
        gathering: Vec<GatheringView> = status.gathering.into_iter().map(GatheringView::from).collect(),
    }
}

view! {
    /// A gang that gathers room.
    struct GatheringView from (gang: v1::Gathering) with {
        let pool = match gang.pool() {
            v1::Pool::BestEffort => "best-effort",
            v1::Pool::Guaranteed | v1::Pool::Unspecified => "guaranteed",
        };
    } {
        unit_id: u64 = gang.unit_id,
        pool: &'static str = pool,
        since_ms: i64 = gang.since_ms,
        until_ms: i64 = gang.until_ms,
        held: u32 = gang.held,
        wanted: u32 = gang.wanted,
    }
}

pub(super) async fn run(client: &Client, format: Format) -> Result<(), Failure> {
    let mut store = client.store_status().await?;
    let members = client.directory().members("").await.map_err(|status| client.explain(status))?;
    // Leaders that are away are part of the picture, not a failure of it.
    let dispatcher = client.dispatcher_status().await;
    let binder = client.binder_status().await;
    let missing: Vec<String> = [("dispatcher", dispatcher.as_ref().err()), ("binder", binder.as_ref().err())]
        .into_iter()
        .filter_map(|(name, failure)| Some(format!("{name}: {}", failure?.message)))
        .collect();
    let view = StatusView {
        address: client.address().to_owned(),
        members: members.into_iter().map(MemberView::from).collect(),
        security: store.security.take().map(SecurityView::from),
        store: store.into(),
        dispatcher: dispatcher.ok().map(DispatcherView::from),
        binder: binder.ok().map(BinderView::from),
    };
    output::show(format, &view, || text(&view, Paint::stdout()))?;
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(godel_client::exit::Code::Unreachable, missing.join("\n"))
            .hint("start it with `godel serve PART`, or everything with `godel up`"))
    }
}

fn by_standing(counts: v1::IdentityCounts) -> BTreeMap<&'static str, u64> {
    let v1::IdentityCounts { valid, expired, gone, revoked } = counts;
    let counts = [
        (Standing::Valid, valid),
        (Standing::Expired, expired),
        (Standing::Gone, gone),
        (Standing::Revoked, revoked),
    ];
    counts.map(|(standing, n)| (standing.name(), n)).into()
}

fn tls_name(mode: v1::TlsMode) -> &'static str {
    match mode {
        v1::TlsMode::Unspecified => "unknown",
        v1::TlsMode::Off => OFF,
        v1::TlsMode::Migrate => MIGRATE,
        v1::TlsMode::On => "on",
    }
}

const OFF: &str = "off";
const MIGRATE: &str = "migrate";

fn mode_name(mode: v1::PartitionMode) -> &'static str {
    match mode {
        v1::PartitionMode::Global | v1::PartitionMode::Unspecified => "global",
        v1::PartitionMode::Preferred => "preferred",
        v1::PartitionMode::Strict => "strict",
    }
}

/// Every lease with its holder, and below it who stands by.
fn members_text(members: &[MemberView], paint: Paint) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for member in members {
        let state = if member.holder.is_empty() { LOST } else { "alive" };
        rows.push(vec![
            member.lease.clone(),
            member.address.clone(),
            member.epoch.to_string(),
            format!("{}ms", member.remaining_ms),
            state.to_owned(),
        ]);
        // A leader's place is wanted by others; the name of a scheduler is not to be.
        let is_elected = matches!(member.lease.as_str(), "dispatcher" | "binder" | "yarn" | "rescheduler");
        let state = if is_elected { "stands by" } else { TAKEN };
        rows.extend(member.standbys.iter().map(|standby| {
            let (lease, address, none) = (member.lease.clone(), standby.address.clone(), String::new());
            vec![lease, address, none.clone(), none, state.to_owned()]
        }));
    }
    let table = output::columns(&["MEMBER", "ADDRESS", "EPOCH", "LEASE", "STATE"], &rows);
    let painted = table.lines().map(|line| {
        // The last column, so that its colour does not count as width.
        for (state, is_bad) in [(LOST, true), (TAKEN, true), ("alive", false)] {
            if let Some(rest) = line.strip_suffix(state) {
                return rest.to_owned() + &if is_bad { paint.bad(state) } else { paint.good(state) };
            }
        }
        line.to_owned()
    });
    painted.map(|line| line + "\n").collect()
}

const LOST: &str = "lost";
const TAKEN: &str = "idle: another process has this name";

fn text(view: &StatusView, paint: Paint) -> String {
    let mut text = members_text(&view.members, paint);
    text.push('\n');
    view.members.iter().for_each(|member| text.push_str(&unreadable(member, paint)));
    if let Some(security) = &view.security {
        text.push_str(&format!("security    {}\n", security_text(security)));
    }
    let store = &view.store;
    text.push_str(&format!(
        "store       {} at revision {}; {} on disk, {} live; id {}{}\n",
        store.engine,
        store.revision,
        bytes(store.disk_bytes),
        bytes(store.live_bytes),
        store.store_id,
        if store.full { "; FULL: writes are refused" } else { "" },
    ));
    if let Some(why) = &store.waiting_for {
        text.push_str(&format!("{} commits wait: {why}\n", paint.bad("ALERT      ")));
    }
    text.push_str(&format!(
        "history     from revision {}: {} of log, {}\n",
        store.floor_revision,
        bytes(store.history_bytes),
        HumanDuration::from_secs(store.history_age_ms / 1_000)
    ));
    text.push_str(&format!("nodes       {} ({} connected)\n", store.nodes, store.sessions));
    if let Some(dispatcher) = view.dispatcher.as_ref().filter(|dispatcher| !dispatcher.capacity.is_empty()) {
        text.push_str(&format!("allocated   {}\n", allocated(dispatcher)));
    }
    if !store.usage.is_empty() {
        text.push_str(&format!("measured    {}, {}\n", use_of(store, CPU), use_of(store, MEMORY)));
    }
    let ever = output::count(store.rows, "running unit");
    text.push_str(&format!("units       {} ({ever} ever bound)\n", store.units));
    if let Some(dispatcher) = &view.dispatcher {
        if dispatcher.evictions_paused {
            text.push_str(&format!(
                "{} {} of {} nodes {} not ready: evictions from lost nodes have stopped, because too many \
                 were lost at once; find the cause, then run `godel node resume-evictions`\n",
                paint.bad("ALERT      "),
                dispatcher.nodes_not_ready,
                dispatcher.nodes,
                output::are(dispatcher.nodes_not_ready)
            ));
        }
        for PauseView { scope, since_ms, reason } in &dispatcher.pauses {
            let (scope, reason) = (shown(scope), shown(reason));
            let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            text.push_str(&format!(
                "{} {scope} since {}{why}; `godel admin resume {scope}` ends the pause\n",
                paint.bad("PAUSED     "),
                output::time(*since_ms)
            ));
        }
        let phases: Vec<String> = dispatcher.phases.iter().map(|(phase, n)| format!("{n} {phase}")).collect();
        text.push_str(&format!(
            "phases      {}\n",
            if phases.is_empty() { "-".to_owned() } else { phases.join(", ") }
        ));
        let by = if dispatcher.partition_by_hand { "by hand" } else { "automatic" };
        let why = match dispatcher.partition_reason.as_str() {
            "" => "never changed",
            why => why,
        };
        text.push_str(&format!("partition   {} ({by}): {}\n", dispatcher.partition_mode, shown(why)));
        text.push_str(&format!(
            "dispatcher  {} queued, {} at schedulers, {} parked, {} repairs\n",
            dispatcher.queued_units, dispatcher.dispatched_units, dispatcher.parked_units, dispatcher.repairs
        ));
    }
    if let Some(binder) = &view.binder {
        let rejected: Vec<String> =
            binder.rejected.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        text.push_str(&format!(
            "binder      {} bound in {} transactions; rejected: {}\n",
            binder.bound,
            binder.txns,
            if rejected.is_empty() { "none".to_owned() } else { rejected.join(", ") }
        ));
        for GatheringView { unit_id, pool, since_ms, until_ms, held, wanted } in &binder.gathering {
            text.push_str(&format!(
                "gathering   unit {unit_id} holds {held} of {wanted} places of pool {pool} since {}, until {}\n",
                output::time(*since_ms),
                output::time(*until_ms)
            ));
        }
    }
    text
}

/// `TLS; 12 identities, 1 expired; 2 connections in plain text`.
fn security_text(security: &SecurityView) -> String {
    let SecurityView { tls, plain_text_connections, identities } = security;
    let Some(identities) = identities.as_ref().filter(|_| *tls != OFF) else {
        return "plain text: whoever reaches state is an administrator".to_owned();
    };
    let speaks =
        if *tls == MIGRATE { "TLS, and plain text, whose callers are administrators" } else { "TLS" };
    let all = output::count(identities.values().sum::<u64>(), "identity");
    let mut text = format!("{speaks}; {all}");
    for (standing, n) in identities.iter().filter(|(standing, _)| **standing != Standing::Valid.name()) {
        if *n > 0 {
            text.push_str(&format!(", {n} {standing}"));
        }
    }
    if *plain_text_connections > 0 {
        text.push_str(&format!("; {} in plain text", output::count(*plain_text_connections, "connection")));
    }
    text
}

/// `cpu 66 % (21.5 of 32), memory 25 % (16Gi of 64Gi), gpu 50 % (4 of 8)`: cpu and memory first.
fn allocated(dispatcher: &DispatcherView) -> String {
    let of = |amounts: &BTreeMap<String, i64>, name: &str| amounts.get(name).copied().unwrap_or(0);
    let one = |name: &str| {
        let (used, all) = (of(&dispatcher.allocated, name), of(&dispatcher.capacity, name));
        let percent = i128::from(used) * 100 / i128::from(all.max(1));
        let (used_text, all_text) = (quantity::show_sum(name, used), quantity::show_sum(name, all));
        match quantity::is_saturated(used) || quantity::is_saturated(all) {
            true => format!("{} {used_text} of {all_text}", shown(name)),
            false => format!("{} {percent} % ({used_text} of {all_text})", shown(name)),
        }
    };
    let others = dispatcher.capacity.keys().map(String::as_str).filter(|name| ![CPU, MEMORY].contains(name));
    [CPU, MEMORY].into_iter().chain(others).map(one).collect::<Vec<_>>().join(", ")
}

/// A line where a member has met records that it cannot read.
fn unreadable(member: &MemberView, paint: Paint) -> String {
    if member.unreadable_records == 0 {
        return String::new();
    }
    format!(
        "{} {} cannot read {} records, and everything that depends on them is frozen: its log names them; replace an \
         older version, or see `godel audit` and `godel state repair`\n",
        paint.bad("UNREADABLE "),
        member.lease,
        member.unreadable_records
    )
}

/// `cpu 41 % of 12,800 (guaranteed 30 %)`.
fn use_of(store: &StoreView, name: &str) -> String {
    let of = |amounts: &BTreeMap<String, i64>| amounts.get(name).copied().unwrap_or(0);
    let all = of(&store.capacity);
    let percent = |used: i64| used.saturating_mul(100) / all.max(1);
    format!(
        "{name} {} % of {} (guaranteed {} %)",
        percent(of(&store.usage)),
        godel_base::quantity::show_about(name, all),
        percent(of(&store.guaranteed_usage))
    )
}

fn bytes(n: u64) -> String {
    godel_base::quantity::show_bytes_about(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_is_one_line() {
        let of = |tls, counts: Option<(u64, u64, u64, u64)>, plain_text_connections| {
            let identities = counts.map(|(valid, expired, gone, revoked)| v1::IdentityCounts {
                valid,
                expired,
                gone,
                revoked,
            });
            let mode: v1::TlsMode = tls;
            let security = v1::StateSecurity { tls: mode.into(), plain_text_connections, identities };
            security_text(&SecurityView::from(security))
        };
        let off = "plain text: whoever reaches state is an administrator";
        assert_eq!(of(v1::TlsMode::Off, None, 3), off);
        assert_eq!(of(v1::TlsMode::On, Some((1, 0, 0, 0)), 0), "TLS; 1 identity");
        assert_eq!(
            of(v1::TlsMode::Migrate, Some((9, 1, 1, 1)), 2),
            "TLS, and plain text, whose callers are administrators; 12 identities, 1 expired, 1 gone, 1 revoked; \
             2 connections in plain text"
        );
    }

    #[test]
    fn members_are_shown_with_those_who_stand_by() {
        let member = |lease: &str, holder: &str, standbys: &[&str]| MemberView {
            lease: lease.to_owned(),
            address: "http://a".to_owned(),
            holder: holder.to_owned(),
            epoch: 3,
            remaining_ms: 2_000,
            unreadable_records: 0,
            standbys: standbys
                .iter()
                .map(|address| StandbyView { address: (*address).to_owned(), holder: "h".to_owned() })
                .collect(),
        };
        let members = [
            member("binder", "h1", &["http://b", "http://c\u{1b}"]),
            member("dispatcher", "", &[]),
            member("scheduler/s1", "h2", &["http://d"]),
        ];
        let text = members_text(&members, Paint::plain());
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "MEMBER ADDRESS EPOCH LEASE STATE",
                "binder http://a 3 2000ms alive",
                "binder http://b - - stands by",
                "binder http://c\\u{1b} - - stands by",
                "dispatcher http://a 3 2000ms lost",
                "scheduler/s1 http://a 3 2000ms alive",
                "scheduler/s1 http://d - - idle: another process has this name",
            ]
        );
    }

    #[test]
    fn what_is_allocated_comes_with_every_resource() {
        let status = v1::GetDispatcherStatusResponse {
            allocated: Some(v1::Resources {
                amounts: [("cpu".to_owned(), 21_000), ("gpu".to_owned(), 1_500)].into_iter().collect(),
            }),
            capacity: Some(v1::Resources {
                amounts: [("cpu", 32_000), ("gpu", 8_000), ("memory", 64 << 30)]
                    .into_iter()
                    .map(|(name, amount)| (name.to_owned(), amount))
                    .collect(),
            }),
            ..v1::GetDispatcherStatusResponse::default()
        };
        assert_eq!(
            allocated(&DispatcherView::from(status)),
            "cpu 65 % (21 of 32), memory 0 % (0 of 64Gi), gpu 18 % (1.5 of 8)"
        );
        let of = |amount: i64| {
            Some(v1::Resources { amounts: [("memory".to_owned(), amount)].into_iter().collect() })
        };
        let allocated = |used, all| {
            allocated(&DispatcherView::from(v1::GetDispatcherStatusResponse {
                allocated: of(used),
                capacity: of(all),
                ..v1::GetDispatcherStatusResponse::default()
            }))
        };
        assert_eq!(
            allocated(293_071_353 << 20, 597_684 << 30),
            "cpu 0 % (0 of 0), memory 47 % (279.4Ti of 583.6Ti)",
            "both in the same unit"
        );
        assert_eq!(allocated(1 << 30, i64::MAX), "cpu 0 % (0 of 0), memory 1Gi of too much to count");
    }
}
