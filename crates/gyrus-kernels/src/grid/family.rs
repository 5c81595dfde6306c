use super::case::Case;
use super::noise::Noise;
use crate::shader::Rungs;

/// A kind of kernels with its grid of shapes.
///
/// The grid is the product of axes: types, rows, widths and edges. A case is computed from its point when it is asked
/// for, so that large grids cost nothing until they are run.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Cases of a short run. Most of their time is the compilation of kernels.
    pub few: usize,
    /// The case of a point on a device with these features; `None` if there is no kernel for it.
    pub case: fn(&mut Point, Rungs) -> Option<Case>,
}

impl Family {
    /// Points of the grid, of which some may have no case.
    pub fn points(&self) -> usize {
        let mut point = Point::at(0);
        (self.case)(&mut point, Rungs::ALL);
        point.size
    }

    /// All cases if `count` is at least the number of points. Otherwise up to `count` of them, in which the values of
    /// each axis occur equally often.
    pub fn cases(self, rungs: Rungs, count: usize) -> impl Iterator<Item = Case> {
        let points = self.points();
        // Points without a case are passed over, but not for ever.
        let most = if count >= points { points } else { 50 * count + 500 };
        let point = move |number| if count >= points { Point::at(number) } else { Point::spread(number) };
        (0..most).filter_map(move |number| (self.case)(&mut point(number), rungs)).take(count)
    }
}

/// A point of a family's grid.
#[derive(Debug, Clone)]
pub struct Point {
    place: Place,
    axes: u64,
    size: usize,
    /// The seed of the case's contents.
    pub seed: u64,
}

#[derive(Debug, Clone)]
enum Place {
    /// What is left of the point's number after the axes so far.
    Index(usize),
    /// The number of a point of a series that is spread over the grid.
    Spread(usize),
}

impl Point {
    /// The point of this number.
    fn at(index: usize) -> Point {
        Point { place: Place::Index(index), axes: 0, size: 1, seed: index as u64 }
    }

    /// A point of the series that has every value of an axis once before it has one twice.
    fn spread(number: usize) -> Point {
        Point { place: Place::Spread(number), ..Point::at(number) }
    }

    /// This point's value on the next axis. All points of a family ask for the same number of values of the same axes.
    pub fn of<T: Copy>(&mut self, axis: &[T]) -> T {
        let n = axis.len();
        self.axes += 1;
        self.size = self.size.saturating_mul(n);
        let at = match &mut self.place {
            Place::Index(rest) => {
                let at = *rest % n;
                *rest /= n;
                at
            }
            Place::Spread(number) => {
                let mut noise = Noise::new(self.axes << 32 | (*number / n) as u64);
                let mut order: Vec<usize> = (0..n).collect();
                for i in (1..n).rev() {
                    order.swap(i, noise.below(i as u32 + 1) as usize);
                }
                order[*number % n]
            }
        };
        axis[at]
    }

    /// Random numbers of this point.
    pub fn noise(&self) -> Noise {
        Noise::new(self.seed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn values(mut point: Point) -> (u32, bool, char) {
        (point.of(&[1, 2, 3]), point.of(&[false, true]), point.of(&['a', 'b', 'c', 'd', 'e']))
    }

    #[test]
    fn numbered_points_are_the_whole_grid() {
        let all: BTreeSet<_> = (0..30).map(|index| values(Point::at(index))).collect();
        assert_eq!(all.len(), 30);
    }

    #[test]
    fn a_series_has_each_value_equally_often() {
        for first in [0, 30, 300] {
            let some: Vec<_> = (first..first + 30).map(|number| values(Point::spread(number))).collect();
            for value in ['a', 'b', 'c', 'd', 'e'] {
                assert_eq!(some.iter().filter(|(.., c)| *c == value).count(), 6);
            }
            assert_eq!(some.iter().filter(|(_, flag, _)| *flag).count(), 15);
        }
        let many: BTreeSet<_> = (0..400).map(|number| values(Point::spread(number))).collect();
        assert_eq!(many.len(), 30, "axes do not go in step");
    }
}
