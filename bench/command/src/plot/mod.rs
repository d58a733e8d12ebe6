//! Figures of a run, drawn from its records: the parts that all suites share.

pub mod homed;
pub mod links;
pub mod lrpc;
pub mod messages;
pub mod pvm;
pub mod threads;
pub mod urpc;

use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, fs};
use upcall_bench::record::Record;

/// Why there are no figures.
#[derive(Debug)]
pub enum PlotError {
    /// The run measured nothing that can be drawn; this names what can.
    Nothing(&'static str),
    /// Drawing failed.
    Drawing(DrawingAreaErrorKind<io::Error>),
    /// A file or folder could not be written.
    File {
        /// The file or folder.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for PlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlotError::Nothing(what) => write!(f, "nothing to plot: this run has no {what}"),
            PlotError::Drawing(error) => write!(f, "the figures cannot be drawn: {error}"),
            PlotError::File { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for PlotError {}

impl From<DrawingAreaErrorKind<io::Error>> for PlotError {
    fn from(error: DrawingAreaErrorKind<io::Error>) -> Self {
        PlotError::Drawing(error)
    }
}

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Draw<'a> = &'a dyn Fn(&Area<'_>) -> Drawn;
/// A chart with a logarithmic vertical axis.
type Chart<'a, X> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, LogCoord<f64>>>;

/// Colours that readers with red-green colour blindness can also distinguish.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(170, 70, 140),
    RGBColor(120, 94, 0),
    RGBColor(70, 70, 70),
    RGBColor(190, 30, 60),
];
const GREY: RGBColor = RGBColor(120, 120, 120);
const LIGHT: RGBColor = RGBColor(190, 190, 190);
const FONT: &str = "sans-serif";
const SIZE: (u32, u32) = (760, 460);
/// Size of two charts beside each other.
const WIDE: (u32, u32) = (2 * SIZE.0, SIZE.1);

/// A figure to draw.
struct Picture<'a> {
    name: &'static str,
    size: (u32, u32),
    draw: Draw<'a>,
}

/// A line of a figure, as horizontal and vertical values.
struct Line {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Extracts a figure from a record.
type Figure = fn(&Record) -> f64;

/// A figure that was drawn.
#[derive(Debug)]
pub struct Svg {
    /// The name of its file.
    pub name: &'static str,
    /// The content of its file.
    pub text: String,
}

/// Draws the figures of a suite's records.
pub type Figures = fn(&[Record]) -> Result<Vec<Svg>, PlotError>;

/// Writes a figure into `dir`, which is created if needed, and returns the path of its file.
///
/// # Errors
/// [`PlotError::File`].
pub fn write(figure: &Svg, dir: &Path) -> Result<PathBuf, PlotError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| PlotError::File { path, error }
    };
    fs::create_dir_all(dir).map_err(failed(dir))?;
    let path = dir.join(figure.name);
    fs::write(&path, &figure.text).map_err(failed(&path))?;
    Ok(path)
}

/// Draws the pictures.
fn render(pictures: &[Picture<'_>]) -> Result<Vec<Svg>, PlotError> {
    let mut figures = Vec::new();
    for Picture { name, size, draw } in pictures {
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, *size).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
        drop(area);
        figures.push(Svg { name, text });
    }
    Ok(figures)
}

/// Returns the texts of figures.
#[cfg(test)]
fn texts(figures: Result<Vec<Svg>, PlotError>) -> Vec<String> {
    figures.unwrap().into_iter().map(|figure| figure.text).collect()
}

/// Returns the range of a logarithmic axis for these figures, with a key of `keys` lines above
/// them.
fn room(figures: impl Iterator<Item = f64>, keys: usize) -> Range<f64> {
    let (least, most) =
        figures.fold((f64::MAX, f64::MIN), |(least, most), y| (least.min(y), most.max(y)));
    let (least, most) = (least / 1.5, most * 1.2);
    let part = (24 + 16 * keys) as f64 / f64::from(SIZE.1 - 100);
    least..most * (most / least).powf(part / (1.0 - part))
}

/// The texts of the axes.
struct Axes<'a> {
    title: &'a str,
    across: &'a str,
    upwards: &'a str,
    /// Maximum number of labels on the horizontal axis.
    labels: usize,
    label: &'a dyn Fn(&f64) -> String,
}

fn chart<'a, X>(
    area: &Area<'a>,
    axes: &Axes<'_>,
    across: impl AsRangedCoord<CoordDescType = X, Value = f64>,
    upwards: Range<f64>,
) -> Result<Chart<'a, X>, DrawingAreaErrorKind<io::Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut builder = ChartBuilder::on(area);
    builder.caption(axes.title, (FONT, 19)).margin(14).x_label_area_size(44).y_label_area_size(92);
    let mut chart = builder.build_cartesian_2d(across, upwards.log_scale())?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(axes.across)
        .y_desc(axes.upwards)
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 13));
    mesh.x_labels(axes.labels).x_label_formatter(axes.label);
    mesh.y_labels(8).y_label_formatter(&|y| format!("{y}"));
    mesh.light_line_style(WHITE.mix(0.0)).bold_line_style(BLACK.mix(0.12)).draw()?;
    Ok(chart)
}

/// Draws a measured line. Its marker depends on its position, to distinguish it without colours
/// too.
fn measured<X: Ranged<ValueType = f64>>(chart: &mut Chart<'_, X>, at: usize, line: &Line) -> Drawn {
    let (colour, points) = (line.colour, || line.points.iter().copied());
    let drawn = chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
    let key = drawn.label(&line.name);
    match at % 3 {
        0 => {
            key.legend(move |(x, y)| {
                EmptyElement::at((x, y)) + stroke(colour) + Circle::new((10, 0), 4, colour.filled())
            });
            chart.draw_series(points().map(|point| Circle::new(point, 4, colour.filled())))?;
        }
        1 => {
            key.legend(move |(x, y)| {
                EmptyElement::at((x, y))
                    + stroke(colour)
                    + TriangleMarker::new((10, 0), 6, colour.filled())
            });
            chart.draw_series(
                points().map(|point| TriangleMarker::new(point, 6, colour.filled())),
            )?;
        }
        _ => {
            let square =
                move |(x, y)| Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], colour.filled());
            key.legend(move |(x, y)| EmptyElement::at((x, y)) + stroke(colour) + square((10, 0)));
            chart.draw_series(points().map(|point| EmptyElement::at(point) + square((0, 0))))?;
        }
    }
    Ok(())
}

/// Bars of one name: a figure for each group that has one.
struct Bars {
    name: String,
    colour: RGBColor,
    heights: Vec<(usize, f64)>,
}

/// Maximum number of bars beside each other that have room for their figures.
const FIGURES: usize = 4;

/// Formats a figure with at most three digits.
fn figure(y: f64) -> String {
    match y {
        10.0.. => format!("{y:.0}"),
        0.1.. => format!("{y:.2}"),
        _ => format!("{y:.3}"),
    }
}

/// Draws bars beside each other for each of `names`. If there are few bars, each has its figure;
/// otherwise only the first, Upcall's, has it.
fn bars(area: &Area<'_>, title: &str, unit: &str, names: &[String], groups: &[Bars]) -> Drawn {
    let label = |at: &f64| {
        let name = names.get(at.round().max(0.0) as usize).filter(|_| at.fract().abs() < 1e-6);
        name.cloned().unwrap_or_default()
    };
    let heights = || groups.iter().flat_map(|bars| &bars.heights).map(|&(_, y)| y);
    let high = room(heights().chain([1.0]), groups.len());
    let floor = high.start;
    let axes = Axes { title, across: "", upwards: unit, labels: names.len() + 1, label: &label };
    let mut chart = chart(area, &axes, -0.5..names.len() as f64 - 0.5, high)?;
    let width = 0.84 / groups.len() as f64;
    for (own, bars) in groups.iter().enumerate() {
        let colour = bars.colour;
        let left = |at: usize| at as f64 - 0.42 + own as f64 * width;
        let bar = |&(at, y): &(usize, f64)| {
            Rectangle::new([(left(at), floor), (left(at) + 0.9 * width, y)], colour.filled())
        };
        let drawn = chart.draw_series(bars.heights.iter().map(bar))?;
        drawn.label(&bars.name).legend(move |(x, y)| {
            Rectangle::new([(x + 4, y - 5), (x + 16, y + 5)], colour.filled())
        });
        if own == 0 || groups.len() <= FIGURES {
            let style = (FONT, 12).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Bottom));
            let text = |&(at, y): &(usize, f64)| {
                EmptyElement::at((left(at) + 0.45 * width, y))
                    + Text::new(figure(y), (0, -2), style.clone())
            };
            chart.draw_series(bars.heights.iter().map(text))?;
        }
    }
    legend(&mut chart)
}

/// Returns the line of a key.
fn stroke(colour: RGBColor) -> PathElement<(i32, i32)> {
    PathElement::new([(0, 0), (20, 0)], colour.stroke_width(2))
}

fn legend<X: Ranged<ValueType = f64>>(chart: &mut Chart<'_, X>) -> Drawn {
    let mut labels = chart.configure_series_labels();
    labels
        .position(SeriesLabelPosition::UpperRight)
        .label_font((FONT, 13))
        .legend_area_size(28)
        .margin(8);
    labels.background_style(WHITE.mix(0.9)).border_style(BLACK.mix(0.3)).draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_written_into_its_folder() {
        let dir = tempfile::TempDir::new().unwrap();
        let figure = Svg { name: "a.svg", text: "<svg>".to_owned() };
        let path = write(&figure, &dir.path().join("made")).unwrap();
        assert_eq!(path, dir.path().join("made/a.svg"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "<svg>");
        let error = write(&figure, &path).unwrap_err().to_string();
        assert!(error.contains("made/a.svg: "), "{error}");
    }
}
