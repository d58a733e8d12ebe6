//! What fits on the screen: columns of a table, and lines of a text.

/// Minimum width of a column of texts, which may be cut.
const SHORTEST: u16 = 8;

/// The columns for which there is room, with their widths, in the order of `columns`. `wanted` has
/// them by importance, and may name a column twice.
pub fn fitting(
    room: u16,
    widths: &[u16],
    wanted: impl Iterator<Item = usize>,
    columns: &[usize],
    is_text: impl Fn(usize) -> bool,
) -> Vec<(usize, u16)> {
    let least = |column: usize| match is_text(column) {
        true => widths[column].min(SHORTEST),
        false => widths[column],
    };
    let mut chosen: Vec<(usize, u16)> = Vec::new();
    let mut used = 0;
    for column in wanted {
        let between = u16::from(!chosen.is_empty());
        let fits = used + between + least(column) <= room;
        if fits && chosen.iter().all(|(known, _)| *known != column) {
            used += between + least(column);
            chosen.push((column, least(column)));
        }
    }
    // The room that is left goes to texts, the most important first.
    for (column, width) in &mut chosen {
        let more = (widths[*column] - *width).min(room - used);
        (*width, used) = (*width + more, used + more);
    }
    let place = |column: usize| columns.iter().position(|shown| *shown == column);
    chosen.sort_by_key(|(column, _)| place(*column));
    chosen
}

/// Maximum number of lines of a text above the table.
const LINES: usize = 4;

/// The text in lines of at most `width` characters, broken between words.
pub fn wrapped(text: &str, width: u16) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one line at least");
        let length = line.chars().count() + 1 + word.chars().count();
        if line.is_empty() {
            line.push_str(word);
        } else if length <= usize::from(width) || lines.len() == LINES {
            let line = lines.last_mut().expect("there is one line at least");
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: [u16; 4] = [16, 6, 10, 20];

    fn fit(room: u16, wanted: &[usize]) -> Vec<(usize, u16)> {
        let is_text = |column| column == 0 || column == 3;
        fitting(room, &WIDTHS, wanted.iter().copied(), &[0, 1, 2, 3], is_text)
    }

    #[test]
    fn columns_are_left_out_by_importance_and_texts_are_cut_first() {
        let wanted = [0, 2, 0, 1, 3];
        assert_eq!(fit(100, &wanted), [(0, 16), (1, 6), (2, 10), (3, 20)]);
        assert_eq!(fit(36, &wanted), [(0, 9), (1, 6), (2, 10), (3, 8)]);
        assert_eq!(fit(34, &wanted), [(0, 16), (1, 6), (2, 10)]);
        assert_eq!(fit(20, &wanted), [(0, 9), (2, 10)]);
        assert_eq!(fit(8, &wanted), [(0, 8)]);
        assert_eq!(fit(3, &wanted), []);
    }

    #[test]
    fn texts_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("", 7), [""]);
        assert_eq!(wrapped("a b c d e f", 1), ["a", "b", "c", "d e f"]);
        assert_eq!(wrapped("abcdefgh x", 3), ["abcdefgh", "x"]);
    }
}
