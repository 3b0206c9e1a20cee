#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "native/tf/row_rules.h"
#include "tensorflow/core/framework/types.pb.h"

namespace millpond::tf {
namespace {

using Kind = RowValue::Kind;
using Quantities = std::vector<Quantity>;

// The most integers that are followed one by one.
constexpr size_t kShapeIntegersMax = 1024;

bool HasRows(const RowNode& node) {
  return std::any_of(node.inputs().begin(), node.inputs().end(),
                     [](const RowValue& input) { return input.IsRows(); });
}

Quantity Product(Quantities::const_iterator begin, Quantities::const_iterator end) {
  return std::accumulate(begin, end, Quantity::Known(1),
                         [](const Quantity& a, const Quantity& b) { return a * b; });
}

// --- Reshape ---

// The factor of rows that are made of parts of several rows.
constexpr int64_t kJoined = -1;

// Returns the factor of rows in the dimension of size -1 of a reshape, before the sizes `tail`; 0
// if it is fixed but not known. Returns kJoined if entries of different rows join in that
// dimension, and nullopt if they may.
std::optional<int64_t> FactorOfRest(const RowValue& rows, const Quantities& tail) {
  const Quantity wanted = Product(tail.begin(), tail.end());
  if (wanted.kind != Quantity::Kind::kKnown || wanted.value <= 0) return std::nullopt;
  const auto after = rows.dims.begin() + rows.axis + 1;
  const Quantity of_row = Product(after, rows.dims.end());
  if (of_row.kind == Quantity::Kind::kKnown && rows.factor > 0) {
    const int64_t count = of_row.value * rows.factor;
    return count % wanted.value == 0 ? count / wanted.value : kJoined;
  }
  // Counts whole entries of the last dimensions, whatever the dimensions before them are.
  Quantity suffix = Quantity::Known(1);
  for (auto at = rows.dims.end(); at != after;) {
    --at;
    suffix = suffix * *at;
    if (suffix.kind != Quantity::Kind::kKnown) break;
    if (suffix.value > 0 && suffix.value % wanted.value == 0) return 0;
  }
  return wanted.value == 1 ? std::optional<int64_t>(0) : std::nullopt;
}

// If the entries of each row lie in one piece, the rows stay the same in any shape that keeps the
// dimensions before them and then has a multiple of R.
RowValue Reshape(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto& shape = node.input(1).elements;
  if (!rows.IsRows() || !shape) return node.Unknown("reshapes to a shape that is not known");
  if (rows.factor < 0) return node.Unknown("reshapes rows that do not lie in one piece");
  if (!rows.has_rank) {
    const bool keeps = rows.axis == 0 && !shape->empty() && shape->front() == Quantity::Rows() &&
                       std::none_of(shape->begin() + 1, shape->end(),
                                    [](const Quantity& size) { return size.DependsOnRows(); });
    return keeps ? node.Rows(0, 1, output) : node.Unknown("reshapes an unknown rank");
  }
  const Quantity before = Product(rows.dims.begin(), rows.dims.begin() + rows.axis);
  if (before.kind != Quantity::Kind::kKnown || before.value <= 0) {
    return node.Unknown("reshapes what stands before the rows");
  }
  Quantity passed = Quantity::Known(1);
  for (size_t at = 0; at < shape->size(); ++at) {
    const Quantity& size = (*shape)[at];
    if (passed.Is(before.value)) {
      const Quantities tail(shape->begin() + static_cast<int>(at) + 1, shape->end());
      const bool has_more_rows = std::any_of(
          tail.begin(), tail.end(), [](const Quantity& each) { return each.DependsOnRows(); });
      if (size.kind == Quantity::Kind::kRows && !has_more_rows) {
        return node.Rows(static_cast<int>(at), size.value, output);
      }
      if (size.Is(-1) && !has_more_rows) {
        const auto factor = FactorOfRest(rows, tail);
        if (!factor) return node.Unknown("may join rows");
        if (*factor == kJoined) return node.Mixed("joins rows");
        return node.Rows(static_cast<int>(at), *factor, output);
      }
    }
    passed = passed * size;
    if (passed.kind != Quantity::Kind::kKnown || passed.value <= 0) break;
  }
  return node.Unknown("reshapes the rows away");
}

// --- Dimensions ---

RowValue InsertDim(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto number = node.input_count() < 2 ? std::nullopt : NumberOf(node.input(1));
  if (!rows.IsRows() || !number) return node.Unknown("inserts a dimension at an unknown place");
  if (*number < 0 && !rows.has_rank) return node.Unknown("inserts into an unknown rank");
  const int64_t at = *number < 0 ? *number + rows.rank() + 1 : *number;
  return node.Rows(rows.axis + (at <= rows.axis ? 1 : 0), rows.factor, output);
}

RowValue RemoveDims(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto dims = node.Integers("squeeze_dims");
  if (dims.empty()) return node.Unknown("squeezes away the dimension of a single row");
  std::set<int> before;  // Checked because a dimension may be named twice.
  for (const int64_t dim : dims) {
    const auto axis = AxisOf(dim, rows);
    if (!axis) return node.Unknown("squeezes an unknown rank");
    if (*axis == rows.axis) return node.Unknown("squeezes the rows");
    if (*axis < rows.axis) before.insert(*axis);
  }
  return node.Rows(rows.axis - static_cast<int>(before.size()), rows.factor, output);
}

RowValue Transpose(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto order = node.input(1).Numbers();
  if (!rows.IsRows() || !order) return node.Unknown("transposes in an order that is not known");
  const auto found = std::find(order->begin(), order->end(), rows.axis);
  if (found == order->end()) return node.Unknown("transposes another rank");
  return node.Rows(static_cast<int>(found - order->begin()), rows.factor, output);
}

// Returns the axis of the rows if all inputs from `begin` to `end` have rows along the same axis,
// with the same factor.
std::optional<int> CommonAxis(const RowNode& node, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const RowValue& input = node.input(i);
    const bool is_alike = input.IsRows() && !input.is_list &&
                          input.axis == node.input(begin).axis &&
                          input.factor == node.input(begin).factor;
    if (!is_alike) return std::nullopt;
  }
  return begin < end ? std::optional<int>(node.input(begin).axis) : std::nullopt;
}

RowValue Stack(const RowNode& node, int output) {
  const auto axis = CommonAxis(node, 0, node.input_count());
  if (!axis) return node.Unknown("stacks rows with other tensors");
  int64_t at = node.Integer("axis");
  if (at < 0) {
    if (!node.input(0).has_rank) return node.Unknown("stacks an unknown rank");
    at += node.input(0).rank() + 1;
  }
  return node.Rows(*axis + (at <= *axis ? 1 : 0), node.input(0).factor, output);
}

RowValue Unstack(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto axis = AxisOf(node.Integer("axis"), rows);
  if (!axis) return node.Unknown("unstacks an unknown rank");
  if (*axis == rows.axis) return node.Unknown("takes the rows apart by their place");
  return node.Rows(rows.axis - (*axis < rows.axis ? 1 : 0), rows.factor, output);
}

// Concatenates the inputs from `begin` on, along the axis that input `axis_input` has.
RowValue ConcatenateFrom(const RowNode& node, size_t begin, size_t end, size_t axis_input,
                         int output) {
  const auto axis = CommonAxis(node, begin, end);
  const auto number = NumberOf(node.input(axis_input));
  if (!axis) return node.Unknown("joins rows with other tensors");
  const auto along = number ? AxisOf(*number, node.input(begin)) : std::nullopt;
  if (!along) return node.Unknown("joins along an axis that is not known");
  if (*along == *axis) return node.Unknown("puts rows behind each other");
  return node.Rows(*axis, node.input(begin).factor, output);
}
RowValue ConcatV2(const RowNode& node, int output) {
  return ConcatenateFrom(node, 0, node.input_count() - 1, node.input_count() - 1, output);
}
RowValue Concat(const RowNode& node, int output) {
  return ConcatenateFrom(node, 1, node.input_count(), 0, output);
}

RowValue SplitAlong(const RowNode& node, const RowValue& rows, const RowValue& axis_input,
                    int output) {
  const auto number = NumberOf(axis_input);
  const auto axis = number ? AxisOf(*number, rows) : std::nullopt;
  if (!rows.IsRows() || !axis) return node.Unknown("splits along an axis that is not known");
  if (*axis == rows.axis) return node.Unknown("splits the rows by their place");
  return node.Rows(rows.axis, rows.factor, output);
}
RowValue Split(const RowNode& node, int output) {
  return SplitAlong(node, node.input(1), node.input(0), output);
}
RowValue SplitV(const RowNode& node, int output) {
  if (!node.input(1).Has(Kind::kFixed)) return node.Unknown("splits by the number of rows");
  return SplitAlong(node, node.input(0), node.input(2), output);
}

// --- Parts ---

// Returns the one element of `numbers` at `index`, as far as it is known.
Quantity At(const RowValue& numbers, size_t index) {
  if (numbers.Has(Kind::kFixed) && !numbers.elements) return {};
  if (!numbers.elements || index >= numbers.elements->size()) return Quantity::Any();
  return (*numbers.elements)[index];
}

bool IsEndOfRows(const Quantity& end, const RowValue& rows) {
  if (end.kind == Quantity::Kind::kRows) return rows.factor == 1 && end.value == 1;
  constexpr int64_t kBeyond = std::numeric_limits<int32_t>::max();
  return end.kind == Quantity::Kind::kKnown && end.value >= kBeyond;
}

// One dimension of the input of a StridedSlice as its specification has it.
struct SliceSpec {
  explicit SliceSpec(const RowNode& node)
      : begins(node.Integer("begin_mask")),
        ends(node.Integer("end_mask")),
        dots(node.Integer("ellipsis_mask")),
        news(node.Integer("new_axis_mask")),
        shrinks(node.Integer("shrink_axis_mask")) {}

  static bool Has(int64_t mask, size_t at) { return at < 31 && ((mask >> at) & 1) != 0; }

  int64_t begins, ends, dots, news, shrinks;
};

// Returns the value of a slice [begin, end) of the row dimension that is not whole: with known
// numbers it takes some rows.
RowValue TakesSome(const RowNode& node, const Quantity& begin, const Quantity& end) {
  const bool is_known = begin.kind != Quantity::Kind::kFixed &&
                        end.kind != Quantity::Kind::kFixed && begin.kind != Quantity::Kind::kAny &&
                        end.kind != Quantity::Kind::kAny;
  return is_known ? node.Mixed("takes rows by their place")
                  : node.Unknown("may take some of the rows");
}

RowValue StridedSlice(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const bool is_of_rows = rows.IsRows() && node.input_count() == 4 && node.input(1).IsFree() &&
                          node.input(2).IsFree() && node.input(3).IsFree();
  if (!is_of_rows) return node.Unknown("slices by rows");
  const RowValue& strides = node.input(3);
  const bool has_size =
      strides.has_rank && strides.rank() == 1 && strides.dims[0].kind == Quantity::Kind::kKnown;
  if (!has_size) return node.Unknown("slices by a specification that is not known");
  const SliceSpec spec(node);
  const auto count = static_cast<size_t>(strides.dims[0].value);
  int in = 0;
  int out = 0;
  int axis = -1;  // of the rows in the output
  for (size_t at = 0; at < count; ++at) {
    if (SliceSpec::Has(spec.dots, at)) {
      if (!rows.has_rank) return node.Unknown("slices an unknown rank");
      int named = 0;
      for (size_t rest = at + 1; rest < count; ++rest)
        named += SliceSpec::Has(spec.news, rest) ? 0 : 1;
      const int skipped = std::max(0, rows.rank() - named - in);
      if (axis < 0 && rows.axis < in + skipped) axis = out + rows.axis - in;
      in += skipped;
      out += skipped;
      continue;
    }
    if (SliceSpec::Has(spec.news, at)) {
      out += 1;
      continue;
    }
    const bool shrinks = SliceSpec::Has(spec.shrinks, at);
    const Quantity begin =
        SliceSpec::Has(spec.begins, at) && !shrinks ? Quantity::Known(0) : At(node.input(1), at);
    const bool has_end = !SliceSpec::Has(spec.ends, at) && !shrinks;
    const Quantity end = has_end ? At(node.input(2), at) : Quantity::Known(INT64_MAX);
    if (in == rows.axis) {
      const bool is_whole =
          !shrinks && begin.Is(0) && IsEndOfRows(end, rows) && At(strides, at).Is(1);
      if (!is_whole) return TakesSome(node, begin, end);
      axis = out;
    } else if (begin.DependsOnRows() || end.DependsOnRows() || !strides.Has(Kind::kFixed)) {
      return node.Unknown("may slice by the number of rows");
    }
    in += 1;
    out += shrinks ? 0 : 1;
  }
  if (axis < 0) axis = out + rows.axis - in;
  return node.Rows(axis, rows.factor, output);
}

RowValue Slice(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const bool is_of_rows = rows.IsRows() && rows.has_rank && node.input_count() == 3 &&
                          node.input(1).IsFree() && node.input(2).IsFree();
  if (!is_of_rows) return node.Unknown("slices by rows or an unknown rank");
  for (int i = 0; i < rows.rank(); ++i) {
    const Quantity begin = At(node.input(1), static_cast<size_t>(i));
    const Quantity size = At(node.input(2), static_cast<size_t>(i));
    if (i != rows.axis) {
      if (begin.DependsOnRows() || size.DependsOnRows()) {
        return node.Unknown("may slice by the number of rows");
      }
    } else if (!begin.Is(0) || !(size.Is(-1) || size == Quantity::Rows(1)) || rows.factor != 1) {
      return TakesSome(node, begin, size);
    }
  }
  return node.Rows(rows.axis, rows.factor, output);
}

RowValue Pad(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows() || !AreOthersFixed(node, 0)) return node.Unknown("pads by rows");
  const auto at = static_cast<size_t>(rows.axis) * 2;
  const Quantity before = At(node.input(1), at);
  const Quantity after = At(node.input(1), at + 1);
  if (!before.Is(0) || !after.Is(0)) return node.Unknown("may add rows");
  return node.Rows(rows.axis, rows.factor, output);
}

RowValue ReverseDims(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto axes = node.input(1).Numbers();
  if (!rows.IsRows() || !axes) return node.Unknown("reverses along axes that are not known");
  for (const int64_t number : *axes) {
    const auto axis = AxisOf(number, rows);
    if (!axis) return node.Unknown("reverses an unknown rank");
    if (*axis == rows.axis) return node.Mixed("reverses the rows");
  }
  return node.Rows(rows.axis, rows.factor, output);
}

RowValue Roll(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto axes = node.input_count() < 3 ? std::nullopt : node.input(2).Numbers();
  if (!rows.IsRows() || !axes || !AreOthersFixed(node, 0)) return node.Unknown("shifts by rows");
  for (const int64_t number : *axes) {
    const auto axis = AxisOf(number, rows);
    if (!axis) return node.Unknown("shifts an unknown rank");
    if (*axis == rows.axis) return node.Mixed("shifts the rows");
  }
  return node.Rows(rows.axis, rows.factor, output);
}

// --- Gathers ---

RowValue GatherFrom(const RowNode& node, const RowValue& table, const RowValue& indices,
                    int64_t number, int output) {
  const auto axis = AxisOf(number, table);
  if (!axis) return node.Unknown("gathers along an axis that is not known");
  const int64_t batch_dims = node.Integer("batch_dims");
  if (batch_dims > 0) {
    const bool are_beside = table.IsRows() && indices.IsRows() && table.axis == indices.axis &&
                            table.factor == indices.factor && table.axis < batch_dims &&
                            *axis >= batch_dims;
    if (!are_beside) return node.Unknown("gathers within dimensions that are not the rows");
    return node.Rows(table.axis, table.factor, output);
  }
  if (batch_dims < 0) return node.Unknown("gathers within an unknown number of dimensions");
  if (indices.IsRows()) {
    if (!table.Has(Kind::kFixed)) return node.Mixed("gathers from the rows of the batch");
    RowValue value = node.Rows(*axis + indices.axis, indices.factor, output);
    return value;
  }
  if (!indices.Has(Kind::kFixed)) return node.Mixed("gathers by the number of rows");
  if (*axis == table.axis) return node.Mixed("takes rows by their place");
  if (*axis > table.axis) return node.Rows(table.axis, table.factor, output);
  if (!indices.has_rank) return node.Unknown("gathers by indices of an unknown rank");
  return node.Rows(table.axis + indices.rank() - 1, table.factor, output);
}

RowValue GatherV2(const RowNode& node, int output) {
  const auto axis = node.input_count() < 3 ? std::nullopt : NumberOf(node.input(2));
  if (!axis) return node.Unknown("gathers along an axis that is not known");
  return GatherFrom(node, node.input(0), node.input(1), *axis, output);
}
RowValue Gather(const RowNode& node, int output) {
  return GatherFrom(node, node.input(0), node.input(1), 0, output);
}
RowValue GatherFromVariable(const RowNode& node, int output) {
  RowValue table = node.input(0);
  table.has_rank = false;  // that of the handle
  return GatherFrom(node, table, node.input(1), 0, output);
}

RowValue GatherNd(const RowNode& node, int output) {
  const RowValue& indices = node.input(1);
  if (!node.input(0).Has(Kind::kFixed) || !indices.IsRows()) {
    return node.Unknown("gathers from rows by places");
  }
  if (!indices.has_rank || indices.axis >= indices.rank() - 1) {
    return node.Unknown("gathers by indices that are rows themselves");
  }
  return node.Rows(indices.axis, indices.factor, output);
}

RowValue OneHot(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows() || !AreOthersFixed(node, 0)) return node.Unknown("encodes by rows");
  const int64_t axis = node.Integer("axis");
  return node.Rows(rows.axis + (axis >= 0 && axis <= rows.axis ? 1 : 0), rows.factor, output);
}

// Returns the number of times that the rows come after each other for a block shape of
// SpaceToBatchND; 0 if that is not known.
int64_t BlocksOf(const RowNode& node) {
  const auto blocks = node.input(1).Numbers();
  if (!blocks || !AreOthersFixed(node, 0)) return 0;
  Quantity count = Quantity::Known(1);
  for (const int64_t size : *blocks) count = count * Quantity::Known(size);
  return count.kind == Quantity::Kind::kKnown && count.value > 0 ? count.value : 0;
}

// Dilated convolutions make examples of the parts of each example: first the first parts of all
// rows, and so on.
RowValue SpaceToBatch(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const int64_t count = BlocksOf(node);
  const bool is_followed = rows.IsRows() && rows.axis == 0 && rows.factor == 1 && count > 0;
  if (!is_followed) return node.Unknown("makes rows of parts of rows");
  return node.Rows(0, count == 1 ? 1 : -count, output);
}
RowValue BatchToSpace(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const int64_t count = BlocksOf(node);
  const bool is_followed =
      rows.IsRows() && rows.axis == 0 && count > 0 && rows.factor == (count == 1 ? 1 : -count);
  return is_followed ? node.Rows(0, 1, output) : node.Unknown("makes parts of rows of rows");
}

// Adds a dimension, which the texts of a row must all fill.
RowValue DecodeRaw(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows() || !AreOthersFixed(node, 0)) return node.Unknown("decodes by rows");
  return node.Rows(rows.axis, rows.factor, output);
}

// --- Ops that make rows ---

RowValue HandThrough(const RowNode& node, int output) {
  const auto index = static_cast<size_t>(output);
  return index < node.input_count() ? node.input(index) : node.Unknown("has too few inputs");
}

// Returns a value with the dimensions `dims` that is the same for each row.
RowValue Alike(const RowNode& node, const Quantities& dims, int output) {
  int axis = -1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].kind == Quantity::Kind::kAny)
      return node.Unknown("makes a size of the number of rows");
    if (dims[i].kind != Quantity::Kind::kRows) continue;
    if (axis >= 0) return node.Unknown("makes two dimensions of the number of rows");
    axis = static_cast<int>(i);
  }
  if (axis >= 0) return node.Rows(axis, dims[static_cast<size_t>(axis)].value, output);
  RowValue value = node.Free(output);
  value.kind = Kind::kFixed;
  value.has_rank = true;
  value.dims = dims;
  return value;
}

RowValue Fill(const RowNode& node, int output) {
  if (!node.input(1).Has(Kind::kFixed) || HasRows(node)) {
    return HasRows(node) ? node.Unknown("fills a tensor with a row") : node.Free(output);
  }
  if (!node.input(0).elements) {
    return node.input(0).Has(Kind::kFixed) ? ApplyFree(node, output)
                                           : node.Unknown("fills a shape that is not known");
  }
  return Alike(node, *node.input(0).elements, output);
}

RowValue BroadcastTo(const RowNode& node, int output) {
  const RowValue& from = node.input(0);
  const auto& shape = node.input(1).elements;
  if (!shape || from.is_list) {
    return HasRows(node) ? node.Unknown("broadcasts to a shape that is not known")
                         : ApplyFree(node, output);
  }
  const int rank = static_cast<int>(shape->size());
  if (from.IsRows()) {
    if (!from.has_rank) return node.Unknown("broadcasts an unknown rank");
    const int axis = rank - 1 - from.FromLast();
    if (axis < 0) return node.Unknown("broadcasts to another rank");
    for (int i = 0; i < rank; ++i) {
      const Quantity& size = (*shape)[static_cast<size_t>(i)];
      const bool is_right = i == axis ? size == Quantity::Rows(from.factor) : !size.DependsOnRows();
      if (!is_right) return node.Unknown("broadcasts rows to another size");
    }
    return node.Rows(axis, from.factor, output);
  }
  if (!from.Has(Kind::kFixed) || !from.has_rank) return ApplyFree(node, output);
  for (int i = 0; i < rank; ++i) {
    if ((*shape)[static_cast<size_t>(i)].kind != Quantity::Kind::kRows) continue;
    const int at = i - (rank - from.rank());
    const bool is_alike = at < 0 || from.dims[static_cast<size_t>(at)].Is(1);
    if (!is_alike) return node.Unknown("broadcasts a dimension to the number of rows");
  }
  return Alike(node, *shape, output);
}

RowValue Tile(const RowNode& node, int output) {
  const RowValue& from = node.input(0);
  const auto& counts = node.input(1).elements;
  if (!counts || !from.has_rank || counts->size() != from.dims.size()) {
    return HasRows(node) ? node.Unknown("repeats by counts that are not known")
                         : ApplyFree(node, output);
  }
  if (from.IsRows()) {
    for (int i = 0; i < from.rank(); ++i) {
      const Quantity& count = (*counts)[static_cast<size_t>(i)];
      if (i == from.axis ? !count.Is(1) : count.DependsOnRows())
        return node.Unknown("repeats the rows");
    }
    return node.Rows(from.axis, from.factor, output);
  }
  if (!from.Has(Kind::kFixed)) return ApplyFree(node, output);
  Quantities dims;
  for (size_t i = 0; i < counts->size(); ++i) dims.push_back(from.dims[i] * (*counts)[i]);
  const bool makes_rows = std::any_of(dims.begin(), dims.end(),
                                      [](const Quantity& dim) { return dim.DependsOnRows(); });
  return makes_rows ? Alike(node, dims, output) : ApplyFree(node, output);
}

// Numbers the rows if its limit is R. A value that is combined with it depends on the places of the
// rows.
RowValue Range(const RowNode& node, int output) {
  if (HasRows(node)) return node.Mixed("counts up to a number of the rows");
  RowValue value = ApplyFree(node, output);
  if (value.Has(Kind::kCount) && value.dims.size() == 1) value.dims[0] = Quantity::Any();
  return value;
}

// --- Lists of tensors ---

using Element = std::shared_ptr<const RowValue>;

bool HasCount(const RowNode& node) {
  return std::any_of(node.inputs().begin(), node.inputs().end(),
                     [](const RowValue& input) { return input.Has(Kind::kCount); });
}

// The length of every list is fixed, and so is the shape of elements that it lacks.
RowValue MakeList(const RowNode& node, int) {
  if (HasRows(node)) return node.Unknown("makes as many tensors as a row says");
  if (HasCount(node)) return node.Unknown("makes a list by the number of rows");
  return RowValue::List(nullptr);
}

RowValue ListFromTensor(const RowNode& node, int) {
  RowValue element = node.input(0);
  if (!element.has_rank || element.dims.empty()) return node.Unknown("takes an unknown rank apart");
  if (element.IsRows() && element.axis == 0)
    return node.Unknown("takes the rows apart by their place");
  if (element.Has(Kind::kCount))
    return node.Unknown("takes apart what depends on the number of rows");
  element.dims.erase(element.dims.begin());
  element.elements.reset();
  if (element.IsRows()) element.axis -= 1;
  return RowValue::List(std::make_shared<const RowValue>(std::move(element)));
}

bool IsFixedPlace(const RowNode& node, size_t index) {
  return index < node.input_count() && node.input(index).Has(Kind::kFixed);
}

// Returns an element of a list. An element that was not set is zeros, of the shape that is input
// number `shape_input`, or of that of the other elements as far as that is open.
RowValue ElementOf(const RowNode& node, const RowValue& list, size_t shape_input) {
  if (!list.is_list || list.content == nullptr) return node.Unknown("reads a list that is empty");
  if (!IsFixedPlace(node, shape_input))
    return node.Unknown("may read zeros for the number of rows");
  const RowValue& shape = node.input(shape_input);
  if (!shape.has_rank) return node.Unknown("may read zeros of another rank");
  RowValue value = *list.content;
  if (shape.rank() == 0) return value;  // -1: open
  if (!shape.elements) return node.Unknown("may read zeros of a shape that is not known");
  const Quantities& sizes = *shape.elements;
  if (!value.has_rank || sizes.size() != value.dims.size()) {
    return node.Unknown("may read zeros of another rank");
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].kind == Quantity::Kind::kKnown && sizes[i].value < 0) continue;
    const bool is_of_rows = value.IsRows() && i == static_cast<size_t>(value.axis);
    if (is_of_rows) return node.Unknown("may read zeros of another number of rows");
    if (value.IsFree()) value.dims[i] = sizes[i];
  }
  return value;
}

RowValue ListGetItem(const RowNode& node, int) {
  if (!IsFixedPlace(node, 1)) return node.Unknown("reads a list at a row's place");
  return ElementOf(node, node.input(0), 2);
}

// The integers of one element are not those of all elements, because elements that were not set are
// zero.
RowValue WithElement(const RowNode& node, const RowValue& list, RowValue element) {
  element.elements.reset();
  const auto added = std::make_shared<const RowValue>(std::move(element));
  return Join(list, RowValue::List(added), node.Cause("puts different tensors into one list"));
}

RowValue ListSetItem(const RowNode& node, int) {
  const RowValue& list = node.input(0);
  if (!list.is_list || !IsFixedPlace(node, 1))
    return node.Unknown("writes a list at a row's place");
  return WithElement(node, list, node.input(2));
}

RowValue ListPushBack(const RowNode& node, int) {
  const RowValue& list = node.input(0);
  return list.is_list ? WithElement(node, list, node.input(1)) : node.Unknown("adds to no list");
}

RowValue ListPopBack(const RowNode& node, int output) {
  return output == 0 ? node.input(0) : ElementOf(node, node.input(0), 1);
}

RowValue ListStack(const RowNode& node, int) {
  RowValue value = ElementOf(node, node.input(0), 1);
  if (value.IsRows()) value.axis += 1;
  if (value.has_rank) value.dims.insert(value.dims.begin(), Quantity());
  return value;
}

RowValue ListLength(const RowNode& node, int output) {
  RowValue value = node.Free(output);
  value.kind = Kind::kFixed;
  return node.input(0).is_list ? value : node.Unknown("counts no list");
}

// --- Integers ---

using Combine = Quantity (*)(const Quantity&, const Quantity&);

Combine CombinationOf(const std::string& op) {
  if (op == "Add" || op == "AddV2")
    return [](const Quantity& a, const Quantity& b) { return a + b; };
  if (op == "Sub") return [](const Quantity& a, const Quantity& b) { return a - b; };
  if (op == "Mul") return [](const Quantity& a, const Quantity& b) { return a * b; };
  if (op == "FloorDiv") return [](const Quantity& a, const Quantity& b) { return a / b; };
  if (op == "Maximum") return Larger;
  if (op == "Minimum") return Smaller;
  return nullptr;
}

std::optional<Quantities> Elementwise(const RowNode& node, Combine combine) {
  if (node.input_count() != 2) return std::nullopt;
  const auto& a = node.input(0).elements;
  const auto& b = node.input(1).elements;
  const bool are_lists = node.input(0).has_rank && node.input(0).rank() <= 1 &&
                         node.input(1).has_rank && node.input(1).rank() <= 1;
  const bool is_alike =
      are_lists && a && b && (a->size() == b->size() || a->size() == 1 || b->size() == 1);
  if (!is_alike || a->empty() || b->empty()) return std::nullopt;
  Quantities all;
  for (size_t i = 0; i < std::max(a->size(), b->size()); ++i) {
    all.push_back(combine((*a)[a->size() == 1 ? 0 : i], (*b)[b->size() == 1 ? 0 : i]));
  }
  return all;
}

// Returns the elements of the inputs from `begin` to `end`, one after the other.
std::optional<Quantities> Chain(const RowNode& node, size_t begin, size_t end) {
  Quantities all;
  for (size_t i = begin; i < end; ++i) {
    const RowValue& input = node.input(i);
    if (!input.has_rank || input.rank() > 1) return std::nullopt;
    if (input.elements) {
      all.insert(all.end(), input.elements->begin(), input.elements->end());
    } else if (input.rank() == 0 && input.IsFree()) {
      all.push_back(input.Has(Kind::kFixed) ? Quantity() : Quantity::Any());
    } else {
      return std::nullopt;
    }
    if (all.size() > kShapeIntegersMax) return std::nullopt;
  }
  return all;
}

// Returns the elements of a Pack, unless it takes the elements of its vectors by turns.
std::optional<Quantities> Packed(const RowNode& node) {
  const bool are_scalars =
      std::all_of(node.inputs().begin(), node.inputs().end(),
                  [](const RowValue& input) { return input.has_rank && input.rank() == 0; });
  if (node.Integer("axis") != 0 && !are_scalars) return std::nullopt;
  return Chain(node, 0, node.input_count());
}

// Returns the part of a vector that a StridedSlice of one dimension takes.
std::optional<Quantities> TakeSlice(const RowNode& node) {
  const RowValue& from = node.input(0);
  const auto begins = node.input(1).Numbers();
  const auto ends = node.input(2).Numbers();
  const auto steps = node.input(3).Numbers();
  const bool is_plain = from.elements && from.rank() == 1 && begins && ends && steps &&
                        steps->size() == 1 && begins->size() == 1 && ends->size() == 1;
  const SliceSpec spec(node);
  if (!is_plain || spec.dots != 0 || spec.news != 0) return std::nullopt;
  const auto size = static_cast<int64_t>(from.elements->size());
  const int64_t step = steps->front();
  if (step == 0) return std::nullopt;
  const auto counted = [size](int64_t at) { return at < 0 ? at + size : at; };
  int64_t begin = counted(begins->front());
  if (SliceSpec::Has(spec.shrinks, 0)) {
    if (begin < 0 || begin >= size) return std::nullopt;
    return Quantities{(*from.elements)[static_cast<size_t>(begin)]};
  }
  if (step < 0) return std::nullopt;
  if (SliceSpec::Has(spec.begins, 0)) begin = 0;
  int64_t end = SliceSpec::Has(spec.ends, 0) ? size : counted(ends->front());
  begin = std::clamp<int64_t>(begin, 0, size);
  end = std::clamp<int64_t>(end, 0, size);
  Quantities taken;
  for (int64_t at = begin; at < end; at += step) {
    taken.push_back((*from.elements)[static_cast<size_t>(at)]);
  }
  return taken;
}

std::optional<Quantities> TakeGathered(const RowNode& node) {
  const RowValue& from = node.input(0);
  const auto at = node.input(1).Numbers();
  if (!from.elements || from.rank() != 1 || !at || node.Integer("batch_dims") != 0)
    return std::nullopt;
  Quantities taken;
  for (const int64_t index : *at) {
    if (index < 0 || index >= static_cast<int64_t>(from.elements->size())) return std::nullopt;
    taken.push_back((*from.elements)[static_cast<size_t>(index)]);
  }
  return taken;
}

std::optional<Quantities> TakePart(const RowNode& node) {
  const RowValue& from = node.input(0);
  const auto begin = NumberOf(node.input(1));
  const auto count = NumberOf(node.input(2));
  if (!from.elements || from.rank() != 1 || !begin || !count || *begin < 0) return std::nullopt;
  const auto size = static_cast<int64_t>(from.elements->size());
  const int64_t end = *count < 0 ? size : *begin + *count;
  if (*begin > size || end > size) return std::nullopt;
  return Quantities(from.elements->begin() + *begin, from.elements->begin() + end);
}

std::optional<Quantities> CountUp(const RowNode& node) {
  const auto begin = NumberOf(node.input(0));
  const auto end = NumberOf(node.input(1));
  const auto step = NumberOf(node.input(2));
  if (!begin || !end || !step || *step <= 0) return std::nullopt;
  Quantities all;
  for (int64_t at = *begin; at < *end; at += *step) {
    all.push_back(Quantity::Known(at));
    if (all.size() > kShapeIntegersMax) return std::nullopt;
  }
  return all;
}

RowRules MakeShapeRules() {
  return {{"Reshape", Reshape},
          {"ExpandDims", InsertDim},
          {"Squeeze", RemoveDims},
          {"Transpose", Transpose},
          {"Pack", Stack},
          {"Unpack", Unstack},
          {"ConcatV2", ConcatV2},
          {"Concat", Concat},
          {"Split", Split},
          {"SplitV", SplitV},
          {"StridedSlice", StridedSlice},
          {"Slice", Slice},
          {"Pad", Pad},
          {"PadV2", Pad},
          {"MirrorPad", Pad},
          {"ReverseV2", ReverseDims},
          {"Roll", Roll},
          {"GatherV2", GatherV2},
          {"Gather", Gather},
          {"ResourceGather", GatherFromVariable},
          {"GatherNd", GatherNd},
          {"ResourceGatherNd", GatherNd},
          {"OneHot", OneHot},
          {"SpaceToBatchND", SpaceToBatch},
          {"BatchToSpaceND", BatchToSpace},
          {"DecodeRaw", DecodeRaw}};
}

RowRules MakeMakingRules() {
  return {{"Identity", HandThrough},
          {"IdentityN", HandThrough},
          {"StopGradient", HandThrough},
          {"PreventGradient", HandThrough},
          {"Snapshot", HandThrough},
          {"Fill", Fill},
          {"BroadcastTo", BroadcastTo},
          {"Tile", Tile},
          {"Range", Range},
          {"TensorListReserve", MakeList},
          {"EmptyTensorList", MakeList},
          {"TensorListFromTensor", ListFromTensor},
          {"TensorListGetItem", ListGetItem},
          {"TensorListSetItem", ListSetItem},
          {"TensorListPushBack", ListPushBack},
          {"TensorListPopBack", ListPopBack},
          {"TensorListStack", ListStack},
          {"TensorListLength", ListLength}};
}

}  // namespace

const RowRules& ShapeRules() {
  static const auto* const kRules = new RowRules(MakeShapeRules());
  return *kRules;
}

const RowRules& MakingRules() {
  static const auto* const kRules = new RowRules(MakeMakingRules());
  return *kRules;
}

namespace {

std::optional<Quantities> Compute(const RowNode& node) {
  const std::string& op = node.op();
  const size_t count = node.input_count();
  if (count == 0) return std::nullopt;
  if (Combine combine = CombinationOf(op)) return Elementwise(node, combine);
  if (op == "Cast" || op == "Reshape" || op == "ExpandDims" || op == "Squeeze") {
    return node.input(0).elements;
  }
  if (op == "Pack") return Packed(node);
  if (op == "ConcatV2") return Chain(node, 0, count - 1);
  if (op == "StridedSlice" && count == 4) return TakeSlice(node);
  if (op == "GatherV2" && count == 3) return TakeGathered(node);
  if (op == "Slice" && count == 3) return TakePart(node);
  if (op == "Range" && count == 3) return CountUp(node);
  const bool is_product = op == "Prod" && count == 2 && node.input(0).elements &&
                          node.input(0).rank() == 1 && NumberOf(node.input(1));
  if (is_product) {
    const Quantities& all = *node.input(0).elements;
    return Quantities{Product(all.begin(), all.end())};
  }
  return std::nullopt;
}

// Returns an integer as 32 bits hold it.
Quantity Narrowed(const Quantity& number) {
  // With a larger factor, the sizes of many rows may not fit: this one would pass 32 bits from
  // 2,048 rows on.
  constexpr int64_t kFactorMax = 1 << 20;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (number.kind == Quantity::Kind::kRows && number.value > kFactorMax) return Quantity::Any();
  const bool is_known = number.kind == Quantity::Kind::kKnown;
  return is_known && (number.value > kMax || number.value < -kMax) ? Quantity() : number;
}

}  // namespace

std::optional<std::vector<Quantity>> ComputeIntegers(const RowNode& node) {
  const int dtype = node.Free(0).dtype;
  // Only integers, because floats round, and have NaN and infinity.
  if (dtype != tensorflow::DT_INT32 && dtype != tensorflow::DT_INT64) return std::nullopt;
  auto numbers = Compute(node);
  if (!numbers || dtype == tensorflow::DT_INT64) return numbers;
  for (Quantity& number : *numbers) number = Narrowed(number);
  return numbers;
}

}  // namespace millpond::tf
