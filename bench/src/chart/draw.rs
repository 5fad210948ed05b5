//! The charts of the suite as SVG: lines and bars on white, in colours that colour-blind readers tell apart, with a mark of
//! its own for each line. Text stays text in whatever sans-serif font the reader has.

use std::ops::Range;

use plotters::{
    coord::{
        Shift,
        ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

#[cfg(test)]
mod tests;

/// Pixels.
const WIDTH: u32 = 760;
const HEIGHT: u32 = 440;
/// Okabe and Ito's colours that show on white, darkest first.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
];
const FONT: &str = "sans-serif";
const PER_SECOND: &str = "placements per second";

/// A chart that cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the chart cannot be drawn: {0}")]
pub(crate) struct Error(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for Error {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

/// A named line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChartLine {
    pub(crate) name: String,
    /// By ascending x; all positive on a logarithmic axis.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A named bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
}

/// How x is laid out.
#[derive(Clone, Copy)]
enum AxisScale {
    Linear,
    /// Equal steps for each doubling.
    Doubling,
}

/// One set of axes and what they show.
struct Panel<'a> {
    title: &'a str,
    x: (&'a str, AxisScale),
    /// From 0.
    y: &'a str,
    lines: &'a [ChartLine],
    /// On an axis of their own to the right, dashed.
    right: Option<(&'a str, &'a [ChartLine])>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Throughput over the number of nodes.
pub(crate) fn by_cluster_size(lines: &[ChartLine]) -> Result<String, Error> {
    draw(WIDTH, |area| {
        panel(
            area,
            &Panel {
                title: "Throughput by cluster size",
                x: ("nodes", AxisScale::Doubling),
                y: PER_SECOND,
                lines,
                right: None,
            },
        )
    })
}

/// Throughput and conflicts over the number of schedulers; beside it, on axes of its own, what was published.
pub(crate) fn by_schedulers(
    throughput: &[ChartLine],
    conflict_percent: &[ChartLine],
    published: &[ChartLine],
) -> Result<String, Error> {
    let ours = Panel {
        title: "Throughput by number of schedulers",
        x: ("schedulers", AxisScale::Doubling),
        y: PER_SECOND,
        lines: throughput,
        right: Some(("conflicts, % of decisions", conflict_percent)),
    };
    if published.is_empty() {
        return draw(WIDTH, |area| panel(area, &ours));
    }
    let theirs = Panel {
        title: "As published for Gödel",
        x: ("schedulers", AxisScale::Doubling),
        y: "pods per second",
        lines: published,
        right: None,
    };
    draw(WIDTH * 8 / 5, |area| {
        let (left, right) = area.split_horizontally(WIDTH);
        panel(&left, &ours)?;
        panel(&right, &theirs)
    })
}

/// A day: shares of the nodes' CPU over its hours.
pub(crate) fn by_hour(lines: &[ChartLine]) -> Result<String, Error> {
    draw(WIDTH, |area| {
        panel(
            area,
            &Panel {
                title: "CPU over a day",
                x: ("hour", AxisScale::Linear),
                y: "% of the nodes' CPU",
                lines,
                right: None,
            },
        )
    })
}

/// Throughput over the share of online work, in percent.
pub(crate) fn by_online_share(lines: &[ChartLine]) -> Result<String, Error> {
    draw(WIDTH, |area| {
        panel(
            area,
            &Panel {
                title: "Throughput by share of online work",
                x: ("online, % of placements", AxisScale::Linear),
                y: PER_SECOND,
                lines,
                right: None,
            },
        )
    })
}

/// Throughput with parts of the scheduler switched off.
pub(crate) fn ablation(bars: &[Bar]) -> Result<String, Error> {
    draw(WIDTH, |area| {
        let count = f64::from(u32::try_from(bars.len()).unwrap_or(u32::MAX));
        let top = ceiling(bars.iter().map(|bar| bar.value));
        let mut chart = ChartBuilder::on(area)
            .caption("Throughput with parts switched off", (FONT, 23))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..count.max(1.0), 0.0..top)?;
        // The middle of each bar has its name; ticks in between have none.
        let name = |x: &f64| {
            bars.iter()
                .zip(0u32..)
                .find(|(_, idx)| (f64::from(*idx) + 0.5 - x).abs() < 1e-6)
                .map(|(bar, _)| bar.name.clone())
                .unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels(2 * bars.len() + 1)
            .x_label_formatter(&name)
            .y_desc(PER_SECOND)
            .y_label_formatter(&|y| short(*y))
            .label_style((FONT, 15))
            .axis_desc_style((FONT, 17))
            .draw()?;
        for (bar, idx) in bars.iter().zip(0u32..) {
            let left = f64::from(idx);
            let corners = [(left + 0.2, 0.0), (left + 0.8, bar.value)];
            chart.draw_series([Rectangle::new(corners, COLOURS[0].filled())])?;
            let style = TextStyle::from((FONT, 17)).pos(Pos::new(HPos::Center, VPos::Bottom));
            chart.draw_series([Text::new(short(bar.value), (left + 0.5, bar.value), style)])?;
        }
        Ok(())
    })
}

fn draw(width: u32, paint: impl FnOnce(&Area<'_>) -> Result<(), Error>) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, HEIGHT)).into_drawing_area();
        area.fill(&WHITE)?;
        paint(&area)?;
        area.present()?;
    }
    Ok(svg)
}

fn panel(area: &Area<'_>, panel: &Panel<'_>) -> Result<(), Error> {
    let Panel { title, x: (x_name, scale), y, lines, right } = panel;
    let all = lines.iter().chain(right.iter().flat_map(|(_, lines)| *lines));
    let mut xs: Vec<f64> = all.flat_map(|line| &line.points).map(|point| point.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (right_name, dashed) = right.unwrap_or(("", &[]));
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 23))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(76)
        .right_y_label_area_size(if right.is_some() { 64 } else { 12 })
        .build_cartesian_2d(Axis::new(*scale, &xs), 0.0..heights(lines))?
        .set_secondary_coord(Axis::new(*scale, &xs), 0.0..heights(dashed));
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(*x_name)
        .y_desc(*y)
        .y_label_formatter(&|y| short(*y))
        .label_style((FONT, 15))
        .axis_desc_style((FONT, 17))
        .draw()?;
    if right.is_some() {
        chart
            .configure_secondary_axes()
            .y_desc(right_name)
            .y_label_formatter(&|y: &f64| short(*y))
            .label_style((FONT, 15))
            .axis_desc_style((FONT, 17))
            .draw()?;
    }
    let mut colours = COLOURS.iter().zip(0..).cycle();
    for line in *lines {
        let Some((&colour, mark)) = colours.next() else { break };
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
            .label(line.name.as_str())
            .legend(move |(x, y)| {
                EmptyElement::at((x, y))
                    + PathElement::new([(0, 0), (24, 0)], colour.stroke_width(2))
                    + dot(12, mark, colour)
            });
        let dots = line.points.iter().map(|at| EmptyElement::at(*at) + dot(0, mark, colour));
        chart.draw_series(dots)?;
    }
    for line in dashed {
        let Some((&colour, mark)) = colours.next() else { break };
        chart
            .draw_secondary_series(DashedLineSeries::new(
                line.points.iter().copied(),
                6,
                4,
                colour.stroke_width(2),
            ))?
            .label(line.name.as_str())
            .legend(move |(x, y)| {
                EmptyElement::at((x, y))
                    + PathElement::new([(0, 0), (9, 0)], colour.stroke_width(2))
                    + PathElement::new([(15, 0), (24, 0)], colour.stroke_width(2))
                    + dot(12, mark, colour)
            });
        let dots = line.points.iter().map(|at| EmptyElement::at(*at) + dot(0, mark, colour));
        chart.draw_secondary_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .legend_area_size(30)
        .background_style(WHITE.mix(0.9))
        .label_font((FONT, 17))
        .draw()?;
    Ok(())
}

/// The mark of a line, a polygon of its own, `right` pixels beside its place.
fn dot(right: i32, mark: usize, colour: RGBColor) -> Polygon<(i32, i32)> {
    let corners: &[(i32, i32)] = match mark % 3 {
        0 => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
        1 => &[(0, -5), (5, 4), (-5, 4)],
        _ => &[(0, -6), (6, 0), (0, 6), (-6, 0)],
    };
    Polygon::new(corners.iter().map(|(x, y)| (right + x, *y)).collect::<Vec<_>>(), colour)
}

/// An axis from the first to the last of the values on it, with some room, and a tick at each.
struct Axis {
    scale: AxisScale,
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Axis {
    fn new(scale: AxisScale, values: &[f64]) -> Self {
        let first = values.first().copied().unwrap_or(1.0);
        let last = values.last().copied().filter(|last| *last > first).unwrap_or(first + 1.0);
        Self { scale, range: first..last, ticks: values.to_vec() }
    }

    fn at(&self, value: f64) -> f64 {
        match self.scale {
            AxisScale::Linear => value,
            AxisScale::Doubling => value.log2(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let (first, last) = (self.at(self.range.start), self.at(self.range.end));
        let part = 0.04 + 0.92 * (self.at(*value) - first) / (last - first);
        let pixel = f64::from(from) + part * f64::from(to - from);
        #[allow(clippy::cast_possible_truncation, reason = "between two pixels of the chart")]
        let pixel = pixel.round() as i32;
        pixel
    }

    fn key_points<H: KeyPointHint>(&self, _hint: H) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        short(*value)
    }
}

/// Room for the lines and, above them, for their names.
fn heights(lines: &[ChartLine]) -> f64 {
    ceiling(lines.iter().flat_map(|line| &line.points).map(|point| point.1))
}

fn ceiling(values: impl Iterator<Item = f64>) -> f64 {
    let top = values.fold(0.0, f64::max);
    if top > 0.0 { top * 1.3 } else { 1.0 }
}

/// A number of at most four digits and its unit.
fn short(number: f64) -> String {
    let (scaled, unit) = match number.abs() {
        size if size >= 1e6 => (number / 1e6, " M"),
        size if size >= 1e4 => (number / 1e3, " k"),
        _ => (number, ""),
    };
    let text = if scaled.abs() < 10.0 { format!("{scaled:.2}") } else { format!("{scaled:.1}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned() + unit
}
