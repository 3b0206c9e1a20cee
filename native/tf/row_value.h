#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millpond::tf {

// A size or an integer of a graph, for every number R of rows.
struct Quantity {
  enum class Kind {
    kFixed,  // the same for every R, but not known
    kKnown,  // `value`
    kRows,   // R times `value`; R times a fixed number if `value` is 0
    kAny,    // may depend on R in any way
  };

  Kind kind = Kind::kFixed;
  int64_t value = 0;

  static Quantity Known(int64_t value) { return {Kind::kKnown, value}; }
  static Quantity Rows(int64_t factor = 1) { return {Kind::kRows, factor}; }
  static Quantity Any() { return {Kind::kAny, 0}; }

  bool Is(int64_t number) const { return kind == Kind::kKnown && value == number; }
  bool DependsOnRows() const { return kind == Kind::kRows || kind == Kind::kAny; }
  friend bool operator==(const Quantity& a, const Quantity& b) {
    return a.kind == b.kind && a.value == b.value;
  }
  friend bool operator!=(const Quantity& a, const Quantity& b) { return !(a == b); }
};

Quantity operator+(const Quantity& a, const Quantity& b);
Quantity operator-(const Quantity& a, const Quantity& b);
Quantity operator*(const Quantity& a, const Quantity& b);
// Rounds down, as FloorDiv does.
Quantity operator/(const Quantity& a, const Quantity& b);
Quantity Larger(const Quantity& a, const Quantity& b);
Quantity Smaller(const Quantity& a, const Quantity& b);
// Returns the most that is known to hold for both.
Quantity Join(const Quantity& a, const Quantity& b);

// The reason why a value has no rows of its own.
struct RowCause {
  std::string node;
  std::string op;
  std::string reason;
};

// The relation of a value over several rows to the values of each row alone. Checks of the inputs
// are folds, because all rows must pass.
enum class Fold {
  kNone,      // in no known way
  kAll,       // a bool that is true for each row alone, if it is true for all together
  kAny,       // a bool that is true for all together, if it is true for a row alone
  kLargest,   // a number that is at least that of each row
  kSmallest,  // a number that is at most that of each row
  kPlaces,    // the places of what is true: more rows have more
  kCount,     // the number of such places
};

// The content of a tensor of a graph, for every number R of rows.
struct RowValue {
  enum class Kind {
    kFixed,  // the same in every run: constants, variables
    kCount,  // depends on R, and on no row
    kRows,   // dimension `axis` has R * factor entries, `factor` of them in a row for each row, and
             // the entries of a row depend on that row of the inputs alone
    kUnknown,  // `cause`
    kMixed,    // `cause`: an entry depends on several rows, or on the place of a row
  };

  Kind kind = Kind::kFixed;
  int dtype = 0;               // tensorflow::DataType
  bool has_rank = false;       // of a value with a cause: true only for a scalar
  std::vector<Quantity> dims;  // if has_rank
  int axis = 0;                // of kRows
  // Of kRows; 0: a fixed number that is not known. If it is negative, the dimension has -factor
  // times the R rows, one after the other: each row has entries R apart.
  int64_t factor = 1;
  // The integers of a kFixed or kCount tensor, in row-major order; nullopt: not known.
  std::optional<std::vector<Quantity>> elements;
  std::shared_ptr<const RowCause> cause;
  Fold fold = Fold::kNone;  // of a value with a cause
  // The least that a value with a cause can be, whatever the rows are.
  std::optional<int64_t> at_least;
  // For a handle, the value of its variable. For a tensor list, what all its elements have in
  // common; null as long as it has no elements.
  std::shared_ptr<const RowValue> content;
  bool is_list = false;

  bool Has(Kind its_kind) const { return kind == its_kind; }
  bool IsRows() const { return kind == Kind::kRows; }
  // True if it depends on no row.
  bool IsFree() const { return kind == Kind::kFixed || kind == Kind::kCount; }
  int rank() const { return static_cast<int>(dims.size()); }
  // The distance of the rows from the last dimension. Requires has_rank.
  int FromLast() const { return rank() - 1 - axis; }
  // Returns the elements if all are known.
  std::optional<std::vector<int64_t>> Numbers() const;

  static RowValue Fixed() { return {}; }
  static RowValue Of(Kind kind, RowCause cause);
  static RowValue List(std::shared_ptr<const RowValue> element);
};

// Returns what holds for both, as for the branches of a conditional and the turns of a loop.
// `place` is their node, in case they have nothing in common.
RowValue Join(const RowValue& a, const RowValue& b, const RowCause& place);
bool AreEqual(const RowValue& a, const RowValue& b);

}  // namespace millpond::tf
