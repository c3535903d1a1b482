#include "host/formats/tensorflow/join_slices.hpp"

#include <algorithm>
#include <optional>

namespace cbk::tensorflow {
namespace {

constexpr int most_levels = 100;
constexpr size_t most_pieces = 1 << 20;  // also of those that are cut in two

struct Box {
  Shape start;
  Shape stop;
};

std::string to_text(const Box& box) {
  std::vector<std::string> ranges;
  for (size_t dim = 0; dim < box.start.size(); ++dim)
    ranges.push_back(fmt::format("{}:{}", box.start[dim], box.stop[dim]));
  return fmt::format("[{}]", fmt::join(ranges, ", "));
}

int64_t start_of(const Piece& piece, size_t dim) {
  return piece.start[dim];
}
int64_t stop_of(const Piece& piece, size_t dim) {
  return piece.start[dim] + piece.tensor.shape()[dim];
}

/// Fills boxes from pieces. A box that is not a single piece is cut along a dim, at a place that no piece
/// crosses if there is one.
class Joiner {
 public:
  Tensor join(const Box& box, std::vector<Piece> pieces, int level) {
    if (pieces.empty()) fail(Errc::format, "its slices leave out {}", to_text(box));
    if (pieces.size() == 1 && fills(pieces.front(), box)) return pieces.front().tensor;
    if (level > most_levels)
      fail(Errc::unsupported, "its {} slices are arranged in too complicated a way", pieces.size());
    for (size_t dim = 0; dim < box.start.size(); ++dim) {
      const Shape cuts = free_cuts(box, pieces, dim);
      if (!cuts.empty()) return cut(box, std::move(pieces), dim, cuts, level);
    }
    for (size_t dim = 0; dim < box.start.size(); ++dim) {
      if (const auto place = any_edge(box, pieces, dim))
        return cut(box, std::move(pieces), dim, {*place}, level);
    }
    fail(Errc::format, "its slices overlap in {}", to_text(box));
  }

 private:
  static bool fills(const Piece& piece, const Box& box) {
    for (size_t dim = 0; dim < box.start.size(); ++dim) {
      if (start_of(piece, dim) != box.start[dim] || stop_of(piece, dim) != box.stop[dim]) return false;
    }
    return true;
  }

  /// The edges of pieces that are inside the box and cross no piece.
  static Shape free_cuts(const Box& box, std::vector<Piece>& pieces, size_t dim) {
    std::sort(pieces.begin(), pieces.end(),
              [&](const Piece& a, const Piece& b) { return start_of(a, dim) < start_of(b, dim); });
    Shape cuts;
    int64_t reached = box.start[dim];
    const auto cut_at = [&](int64_t place) {
      if (place > box.start[dim] && place < box.stop[dim] && (cuts.empty() || cuts.back() < place))
        cuts.push_back(place);
    };
    for (const Piece& piece : pieces) {
      if (start_of(piece, dim) >= reached) {
        cut_at(reached);
        cut_at(start_of(piece, dim));
      }
      reached = std::max(reached, stop_of(piece, dim));
    }
    cut_at(reached);
    return cuts;
  }

  static std::optional<int64_t> any_edge(const Box& box, const std::vector<Piece>& pieces, size_t dim) {
    for (const Piece& piece : pieces) {
      if (start_of(piece, dim) > box.start[dim]) return start_of(piece, dim);
      if (stop_of(piece, dim) < box.stop[dim]) return stop_of(piece, dim);
    }
    return std::nullopt;
  }

  /// `cuts` ascend inside the box.
  Tensor cut(const Box& box, std::vector<Piece> pieces, size_t dim, const Shape& cuts, int level) {
    std::vector<std::vector<Piece>> groups(cuts.size() + 1);
    for (Piece& piece : pieces) {
      auto group = static_cast<size_t>(std::upper_bound(cuts.begin(), cuts.end(), start_of(piece, dim)) -
                                       cuts.begin());
      while (group < cuts.size() && stop_of(piece, dim) > cuts[group]) {
        if (++cut_ > most_pieces) fail(Errc::unsupported, "its slices are arranged in too complicated a way");
        const int64_t length = cuts[group] - start_of(piece, dim);
        groups[group].push_back({piece.start, piece.tensor.slice(static_cast<int64_t>(dim), 0, length)});
        piece.tensor = piece.tensor.slice(static_cast<int64_t>(dim), length, piece.tensor.shape()[dim]);
        piece.start[dim] = cuts[group++];
      }
      groups[group].push_back(std::move(piece));
    }
    std::vector<Tensor> parts;
    for (size_t group = 0; group < groups.size(); ++group) {
      Box part = box;
      if (group > 0) part.start[dim] = cuts[group - 1];
      if (group < cuts.size()) part.stop[dim] = cuts[group];
      parts.push_back(join(part, std::move(groups[group]), level + 1));
    }
    return Tensor::concat(parts, static_cast<int64_t>(dim));
  }

  size_t cut_ = 0;
};

}  // namespace

Tensor join_slices(const Shape& shape, DType dtype, std::vector<Piece> pieces) {
  if (numel_of(shape) == 0) return Tensor::from_bytes(dtype, shape, {});
  std::erase_if(pieces, [](const Piece& piece) { return piece.tensor.numel() == 0; });
  return Joiner().join({Shape(shape.size(), 0), shape}, std::move(pieces), 0);
}

}  // namespace cbk::tensorflow
