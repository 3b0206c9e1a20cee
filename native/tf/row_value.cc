#include "native/tf/row_value.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace millpond::tf {
namespace {

using QuantityKind = Quantity::Kind;

constexpr int64_t kLargest = int64_t{1} << 62;

bool AreKnown(const Quantity& a, const Quantity& b) {
  return a.kind == QuantityKind::kKnown && b.kind == QuantityKind::kKnown;
}
// Returns the combination of both if nothing better is known.
Quantity Rest(const Quantity& a, const Quantity& b) {
  return a.DependsOnRows() || b.DependsOnRows() ? Quantity::Any() : Quantity();
}
Quantity KnownOrFixed(bool has_overflow, int64_t value) {
  return has_overflow ? Quantity() : Quantity::Known(value);
}

}  // namespace

Quantity operator+(const Quantity& a, const Quantity& b) {
  if (a.Is(0)) return b;
  if (b.Is(0)) return a;
  if (!AreKnown(a, b)) return Rest(a, b);
  int64_t sum = 0;
  const bool has_overflow = __builtin_add_overflow(a.value, b.value, &sum);
  return KnownOrFixed(has_overflow, sum);
}

Quantity operator-(const Quantity& a, const Quantity& b) {
  if (b.Is(0)) return a;
  if (!AreKnown(a, b)) return Rest(a, b);
  int64_t difference = 0;
  const bool has_overflow = __builtin_sub_overflow(a.value, b.value, &difference);
  return KnownOrFixed(has_overflow, difference);
}

Quantity operator*(const Quantity& a, const Quantity& b) {
  if (a.Is(1)) return b;
  if (b.Is(1)) return a;
  if (a.Is(0) || b.Is(0)) return Quantity::Known(0);
  if (b.kind == QuantityKind::kRows && a.kind != QuantityKind::kRows) return b * a;
  if (a.kind == QuantityKind::kRows && b.kind == QuantityKind::kFixed) return Quantity::Rows(0);
  if (a.kind == QuantityKind::kRows && b.kind == QuantityKind::kKnown && b.value > 0) {
    int64_t factor = 0;
    const bool has_overflow = __builtin_mul_overflow(a.value, b.value, &factor);
    return Quantity::Rows(has_overflow ? 0 : factor);
  }
  if (!AreKnown(a, b)) return Rest(a, b);
  int64_t product = 0;
  const bool has_overflow = __builtin_mul_overflow(a.value, b.value, &product);
  return KnownOrFixed(has_overflow, product);
}

Quantity operator/(const Quantity& a, const Quantity& b) {
  if (b.Is(1)) return a;
  if (a.kind == QuantityKind::kRows && a.value > 0 && b.value > 0 && a.value % b.value == 0) {
    if (b.kind == QuantityKind::kKnown) return Quantity::Rows(a.value / b.value);
    if (b.kind == QuantityKind::kRows) return Quantity::Known(a.value / b.value);
  }
  if (a.kind == QuantityKind::kRows && a.value == 0 && b.kind == QuantityKind::kRows &&
      b.value == 1)
    return {};
  if (!AreKnown(a, b) || b.value <= 0 || a.value < 0) return Rest(a, b);
  return Quantity::Known(a.value / b.value);
}

Quantity Larger(const Quantity& a, const Quantity& b) {
  if (a == b && a.kind != QuantityKind::kFixed) return a;
  return AreKnown(a, b) ? Quantity::Known(std::max(a.value, b.value)) : Rest(a, b);
}

Quantity Smaller(const Quantity& a, const Quantity& b) {
  if (a == b && a.kind != QuantityKind::kFixed) return a;
  return AreKnown(a, b) ? Quantity::Known(std::min(a.value, b.value)) : Rest(a, b);
}

Quantity Join(const Quantity& a, const Quantity& b) { return a == b ? a : Rest(a, b); }

std::optional<std::vector<int64_t>> RowValue::Numbers() const {
  if (!elements) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Quantity& element : *elements) {
    if (element.kind != Quantity::Kind::kKnown || std::abs(element.value) > kLargest) {
      return std::nullopt;
    }
    numbers.push_back(element.value);
  }
  return numbers;
}

RowValue RowValue::Of(Kind kind, RowCause cause) {
  RowValue value;
  value.kind = kind;
  value.cause = std::make_shared<const RowCause>(std::move(cause));
  return value;
}

RowValue RowValue::List(std::shared_ptr<const RowValue> element) {
  RowValue list;
  if (element != nullptr) {
    list.kind = element->kind;
    list.cause = element->cause;
  }
  list.content = std::move(element);
  list.is_list = true;
  return list;
}

namespace {

void JoinShapes(const RowValue& a, const RowValue& b, RowValue* joined) {
  joined->has_rank = a.has_rank && b.has_rank && a.rank() == b.rank();
  joined->dims.clear();
  if (!joined->has_rank) return;
  for (size_t i = 0; i < a.dims.size(); ++i) joined->dims.push_back(Join(a.dims[i], b.dims[i]));
}

RowValue JoinFree(const RowValue& a, const RowValue& b) {
  RowValue joined = a;
  joined.kind = std::max(a.kind, b.kind);
  JoinShapes(a, b, &joined);
  joined.elements.reset();
  if (a.elements && b.elements && a.elements->size() == b.elements->size()) {
    joined.elements.emplace();
    for (size_t i = 0; i < a.elements->size(); ++i) {
      joined.elements->push_back(Join((*a.elements)[i], (*b.elements)[i]));
    }
  }
  if (a.content == nullptr || b.content == nullptr || !AreEqual(*a.content, *b.content)) {
    joined.content.reset();
  }
  return joined;
}

}  // namespace

RowValue Join(const RowValue& a, const RowValue& b, const RowCause& place) {
  if (a.is_list && b.is_list) {
    if (a.content == nullptr) return b;
    if (b.content == nullptr) return a;
    return RowValue::List(std::make_shared<const RowValue>(Join(*a.content, *b.content, place)));
  }
  for (const RowValue::Kind kind : {RowValue::Kind::kMixed, RowValue::Kind::kUnknown}) {
    // Leaves out rank and bound, which may hold for only one of both.
    if (a.Has(kind)) return RowValue::Of(kind, *a.cause);
    if (b.Has(kind)) return RowValue::Of(kind, *b.cause);
  }
  if (a.IsFree() && b.IsFree() && a.is_list == b.is_list) return JoinFree(a, b);
  const bool are_alike = a.IsRows() && b.IsRows() && a.axis == b.axis && a.factor == b.factor &&
                         (a.has_rank && b.has_rank ? a.rank() == b.rank() : a.axis == 0);
  if (!are_alike || a.is_list != b.is_list) return RowValue::Of(RowValue::Kind::kUnknown, place);
  RowValue joined = a;
  JoinShapes(a, b, &joined);
  return joined;
}

bool AreEqual(const RowValue& a, const RowValue& b) {
  const bool have_content = a.content != nullptr && b.content != nullptr;
  if ((a.content != nullptr) != (b.content != nullptr)) return false;
  if (have_content && a.content != b.content && !AreEqual(*a.content, *b.content)) return false;
  return a.kind == b.kind && a.has_rank == b.has_rank && a.dims == b.dims && a.axis == b.axis &&
         a.factor == b.factor && a.elements == b.elements && a.is_list == b.is_list &&
         a.fold == b.fold;
}

}  // namespace millpond::tf
