use super::*;

fn line(name: &str, points: &[(f64, f64)]) -> ChartLine {
    ChartLine { name: name.to_owned(), points: points.to_vec() }
}

#[test]
fn every_chart_has_title_units_names_and_every_point() {
    let lines = [
        line("service", &[(1_000.0, 400_000.0), (20_000.0, 380_000.0)]),
        line("gang <of 10>", &[(1_000.0, 120_000.0), (20_000.0, 110_000.0)]),
    ];
    let schedulers = [line("simulated", &[(1.0, 10_000.0), (2.0, 18_000.0), (32.0, 60_000.0)])];
    let conflicts = [line("conflicts", &[(1.0, 0.0), (2.0, 0.4), (32.0, 3.1)])];
    let published = [line("article", &[(1.0, 2_000.0), (5.0, 4_600.0)])];
    let bars = [
        Bar { name: "both".to_owned(), value: 300_000.0 },
        Bar { name: "no cache".to_owned(), value: 90_000.0 },
        Bar { name: "no scan limit".to_owned(), value: 150_000.0 },
    ];
    let charts = [
        (
            by_cluster_size(&lines),
            vec!["Throughput by cluster size", "\nnodes\n", "gang &lt;of 10&gt;", "20 k"],
        ),
        (
            by_schedulers(&schedulers, &conflicts, &[]),
            vec!["conflicts, % of decisions", "\nschedulers\n", "32"],
        ),
        (
            by_schedulers(&schedulers, &conflicts, &published),
            vec!["As published", "pods per second", "article"],
        ),
        (by_online_share(&lines), vec!["share of online work", "online, % of placements"]),
        (ablation(&bars), vec!["no scan limit", "300 k", "placements per second"]),
    ];
    for (chart, expected) in charts {
        let svg = chart.unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in expected {
            assert!(svg.contains(text), "no `{text}` in {svg}");
        }
        assert!(!svg.contains("@font-face"));
    }
}

#[test]
fn a_point_for_each_run_and_nothing_at_all_are_drawn() {
    let svg = by_cluster_size(&[line("one", &[(10.0, 5.0)])]).unwrap();
    // The mark of the point and the one of the legend.
    assert_eq!(svg.matches("<polygon").count(), 2, "{svg}");
    assert!(by_online_share(&[]).is_ok());
    assert!(ablation(&[]).is_ok());
}

#[test]
fn numbers_are_short() {
    let shown: Vec<String> = [0.0, 0.25, 7.5, 100.0, 4_600.0, 12_345.0, 1_250_000.0].map(short).into();
    assert_eq!(shown, ["0", "0.25", "7.5", "100", "4600", "12.3 k", "1.25 M"]);
}
