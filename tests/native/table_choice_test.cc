#include "native/memory/table_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace millpond::memory {
namespace {

constexpr size_t kBytes = 100;

TableWish Written(const std::string& contents) { return {"m", contents, kBytes, true}; }
TableWish Read(const std::string& contents) { return {"m", contents, kBytes, false}; }

// A table of "m".
TableState Table(const std::string& contents, int holder_count, int64_t changed_row_count = 0,
                 uint64_t released_at = 0) {
  return {"m", contents, kBytes, changed_row_count, holder_count, released_at};
}

struct Row {
  std::string situation;
  TableWish wish;
  std::vector<TableState> tables;
  TableUse use;
  ReadReason reason;
  size_t index;
  std::optional<size_t> source = std::nullopt;
};

TEST(ChooseTable, FollowsTheTable) {
  using R = ReadReason;
  using U = TableUse;
  const std::vector<Row> rows = {
      {"nothing is there", Written("a"), {}, U::kFresh, R::kFirst, 0},
      {"read by a version", Read("a"), {Table("a", 1)}, U::kShare, R::kNone, 0},
      {"read by nobody", Read("a"), {Table("a", 0)}, U::kShare, R::kNone, 0},
      {"another has changed rows", Read("a"), {Table("a", 1, 5)}, U::kFresh, R::kNone, 0, 0},
      {"nobody has changed rows", Read("a"), {Table("a", 0, 5)}, U::kUndo, R::kNone, 0},
      {"written, and read by others", Written("a"), {Table("a", 1)}, U::kFresh, R::kNone, 0, 0},
      {"retired", Written("a"), {Table("a", 1, 3), Table("a", 0, 2)}, U::kUndo, R::kNone, 1},
      {"fewest rows", Written("a"), {Table("a", 0, 3), Table("a", 0, 2)}, U::kUndo, R::kNone, 1},
      {"kept for a rollback",
       Written("a"),
       {Table("a", 1, 3), Table("a", 1, 2)},
       U::kFresh,
       R::kNone,
       0,
       1},
      {"a load failed beside a version",
       Written("a"),
       {Table("a", 1), Table("", 0)},
       U::kOverwrite,
       R::kNone,
       1,
       0},
      {"a load failed", Written("a"), {Table("", 0)}, U::kOverwrite, R::kUnknown, 0},
      {"another file", Written("b"), {Table("a", 0)}, U::kOverwrite, R::kOtherFile, 0},
      {"another file is held", Written("b"), {Table("a", 1)}, U::kFresh, R::kOtherFile, 0},
      {"unknown before known",
       Written("b"),
       {Table("a", 0), Table("", 0)},
       U::kOverwrite,
       R::kUnknown,
       1},
      {"the oldest",
       Written("c"),
       {Table("a", 0, 0, 9), Table("b", 0, 0, 8)},
       U::kOverwrite,
       R::kOtherFile,
       1},
      {"being loaded", Read("a"), {Table("", 1)}, U::kFresh, R::kUnknown, 0},
  };
  for (const Row& row : rows) {
    const TableChoice choice = ChooseTable(row.wish, row.tables);
    EXPECT_EQ(choice.use, row.use) << row.situation;
    EXPECT_EQ(choice.reason, row.reason) << row.situation;
    EXPECT_EQ(choice.index, row.index) << row.situation;
    EXPECT_EQ(choice.source, row.source) << row.situation;
  }
}

TEST(ChooseTable, LeavesOtherModelsAndSizesAlone) {
  TableState other_model = Table("a", 0);
  other_model.owner = "n";
  TableState other_size = Table("a", 0);
  other_size.bytes = kBytes + 1;
  const TableChoice choice = ChooseTable(Read("a"), {other_model, other_size});
  EXPECT_EQ(choice.use, TableUse::kFresh);
  EXPECT_EQ(choice.reason, ReadReason::kFirst);
}

class RandomTables {
 public:
  explicit RandomTables(uint32_t seed) : rng_(seed) {}

  int Below(int end) { return static_cast<int>(rng_() % static_cast<uint32_t>(end)); }
  std::string Contents() { return std::vector<std::string>{"", "a", "b"}[Below(3)]; }
  TableState Table() {
    return {Below(4) > 0 ? "m" : "n",       Contents(), kBytes + Below(2), Below(3) * 2, Below(2),
            static_cast<uint64_t>(Below(5))};
  }
  std::vector<TableState> Tables() {
    std::vector<TableState> tables(Below(6));
    std::generate(tables.begin(), tables.end(), [this] { return Table(); });
    return tables;
  }

 private:
  std::mt19937 rng_;
};

// The promises in the header, over random states.
TEST(ChooseTable, KeepsItsPromises) {
  RandomTables random(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<TableState> tables = random.Tables();
    const TableWish wish{"m", random.Below(2) == 0 ? "a" : "b", kBytes, random.Below(2) == 0};
    const TableChoice choice = ChooseTable(wish, tables);
    const auto has_contents = [&](const TableState& table) {
      return table.owner == "m" && table.bytes == kBytes && table.contents == wish.contents;
    };
    const auto is_usable = [&](const TableState& table) {
      const bool is_shared = !wish.is_written && table.changed_row_count == 0;
      return has_contents(table) && (is_shared || table.holder_count == 0);
    };
    const bool fills = choice.use == TableUse::kOverwrite || choice.use == TableUse::kFresh;
    ASSERT_EQ(fills, std::none_of(tables.begin(), tables.end(), is_usable));
    const bool reads = std::none_of(tables.begin(), tables.end(), has_contents);
    ASSERT_EQ(reads, choice.reason != ReadReason::kNone);
    ASSERT_EQ(choice.source.has_value(), fills && !reads);
    if (choice.source) {
      const TableState& source = tables[*choice.source];
      ASSERT_TRUE(has_contents(source));
      for (const TableState& table : tables) {
        ASSERT_TRUE(!has_contents(table) || source.changed_row_count <= table.changed_row_count);
      }
    }
    if (choice.use == TableUse::kFresh) continue;
    const TableState& chosen = tables[choice.index];
    ASSERT_EQ(chosen.owner, "m");
    ASSERT_EQ(chosen.bytes, kBytes);
    if (choice.use == TableUse::kShare) {
      ASSERT_FALSE(wish.is_written);
      ASSERT_EQ(chosen.changed_row_count, 0);
    } else {
      ASSERT_EQ(chosen.holder_count, 0);
    }
    if (!fills) {
      ASSERT_EQ(chosen.contents, wish.contents);
    }
  }
}

TableState WrittenTable(const std::string& contents, int holder_count,
                        int64_t changed_row_count = 0, uint64_t released_at = 0) {
  TableState table = Table(contents, holder_count, changed_row_count, released_at);
  table.is_written = true;
  return table;
}

struct AheadRow {
  std::string situation;
  std::vector<TableState> tables;
  size_t room_bytes;
  std::optional<TableUse> use;
  size_t index = 0;
  size_t source = 0;
};

TEST(ChooseCopyAhead, FollowsTheTable) {
  using U = TableUse;
  const auto& w = WrittenTable;
  const std::vector<AheadRow> rows = {
      {"after a start", {w("a", 1, 0, 0)}, kBytes, U::kFresh},
      {"without room", {w("a", 1, 0, 0)}, kBytes - 1, std::nullopt},
      {"nobody writes it", {Table("a", 1)}, kBytes, std::nullopt},
      {"nobody serves it", {w("a", 0, 0, 0)}, kBytes, std::nullopt},
      {"it has a copy", {w("a", 1, 3, 0), w("a", 0, 2, 0)}, kBytes, std::nullopt},
      {"the fewest rows", {w("a", 1, 3, 0), w("a", 2, 1, 0)}, kBytes, U::kFresh, 0, 1},
      {"a new file", {w("a", 0, 0, 0), w("b", 1, 0, 0)}, 0, U::kOverwrite, 0, 1},
      {"a load failed", {w("", 0, 0, 0), w("b", 1, 0, 0)}, 0, U::kOverwrite, 0, 1},
      {"unknown before known",
       {w("a", 0, 0, 1), w("", 0, 0, 2), w("b", 1, 0, 0)},
       0,
       U::kOverwrite,
       1,
       2},
      {"the copy of another table",
       {w("a", 1, 0, 0), w("a", 0, 0, 0), w("b", 1, 0, 0)},
       0,
       std::nullopt},
      {"a second table",
       {w("a", 1, 0, 0), w("a", 0, 0, 0), w("b", 1, 0, 0)},
       kBytes,
       U::kFresh,
       0,
       2},
  };
  for (const AheadRow& row : rows) {
    const auto choice = ChooseCopyAhead(row.tables, {{"m", row.room_bytes}});
    ASSERT_EQ(choice.has_value(), row.use.has_value()) << row.situation;
    if (!choice) continue;
    EXPECT_EQ(choice->use, *row.use) << row.situation;
    EXPECT_EQ(choice->index, row.index) << row.situation;
    EXPECT_EQ(choice->source, row.source) << row.situation;
  }
}

TEST(ChooseCopyAhead, CopiesNothingOfAnUnknownOwner) {
  EXPECT_FALSE(ChooseCopyAhead({WrittenTable("a", 1)}, {{"n", kBytes}}));
}

// Each copy is one that the next load would make, and once all are made nothing is left to copy.
TEST(ChooseCopyAhead, KeepsItsPromises) {
  RandomTables random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<TableState> tables = random.Tables();
    for (TableState& table : tables) table.is_written = random.Below(3) > 0;
    const std::map<std::string, size_t> room = {{"m", random.Below(2) * 2 * kBytes}, {"n", 0}};
    for (size_t made = 0;; ++made) {
      ASSERT_LE(made, tables.size());
      const auto choice = ChooseCopyAhead(tables, room);
      if (!choice) break;
      const TableState source = tables[*choice->source];
      ASSERT_GT(source.holder_count, 0);
      ASSERT_FALSE(source.contents.empty());
      const TableWish wish{source.owner, source.contents, source.bytes, true};
      ASSERT_EQ(ChooseTable(wish, tables).source, choice->source);
      TableState copy = source;
      copy.holder_count = 0;
      copy.changed_row_count = 0;
      if (choice->use == TableUse::kFresh) {
        tables.push_back(copy);
        continue;
      }
      ASSERT_EQ(choice->use, TableUse::kOverwrite);
      ASSERT_EQ(tables[choice->index].holder_count, 0);
      ASSERT_EQ(tables[choice->index].bytes, source.bytes);
      ASSERT_EQ(tables[choice->index].owner, source.owner);
      tables[choice->index] = copy;
    }
  }
}

TEST(ChooseDropped, UnknownContentsGoFirstAndThenTheOldest) {
  const std::vector<TableState> tables = {Table("a", 0, 0, 1), Table("b", 1), Table("", 0, 0, 9),
                                          Table("b", 0, 0, 3)};
  EXPECT_EQ(ChooseDropped(tables, 3, kBytes), std::vector<size_t>());
  EXPECT_EQ(ChooseDropped(tables, 2, kBytes), std::vector<size_t>({2}));
  EXPECT_EQ(ChooseDropped(tables, 1, kBytes), (std::vector<size_t>{2, 0}));
  EXPECT_EQ(ChooseDropped(tables, 0, kBytes), (std::vector<size_t>{2, 0, 3}));
}

TEST(ChooseDropped, KeepsWithinTheLimitAndDropsNoHeldTable) {
  RandomTables random(2);
  for (int i = 0; i < 5'000; ++i) {
    const std::vector<TableState> tables = random.Tables();
    const auto kept_count = static_cast<size_t>(random.Below(4));
    const std::vector<size_t> dropped = ChooseDropped(tables, kept_count, kBytes);
    size_t free_bytes = 0;
    for (size_t at = 0; at < tables.size(); ++at) {
      const bool is_dropped = std::count(dropped.begin(), dropped.end(), at) > 0;
      ASSERT_FALSE(is_dropped && tables[at].holder_count > 0);
      if (!is_dropped && tables[at].holder_count == 0) free_bytes += tables[at].bytes;
    }
    ASSERT_LE(free_bytes, kept_count * kBytes);
  }
}

// A table of "m" of `bytes`, which the load of this number had last.
TableState Sized(size_t bytes, uint64_t load, int holder_count) {
  TableState table = Table("a", holder_count);
  table.bytes = bytes;
  table.load = load;
  return table;
}

TEST(ChooseUseless, FollowsTheTable) {
  struct Case {
    std::string situation;
    std::vector<TableState> tables;
    std::optional<std::set<size_t>> wished_bytes;
    std::vector<size_t> useless;
  };
  const std::optional<std::set<size_t>> at_rest;
  const std::vector<Case> cases = {
      {"held", {Sized(1, 1, 1), Sized(2, 2, 1)}, at_rest, {}},
      {"a version is gone", {Sized(1, 1, 0), Sized(3, 1, 0)}, at_rest, {}},
      {"half of a version is gone", {Sized(1, 1, 0), Sized(3, 1, 1)}, at_rest, {}},
      {"the same size is newer", {Sized(1, 1, 0), Sized(1, 2, 1)}, at_rest, {}},
      {"only other sizes are newer", {Sized(1, 1, 0), Sized(3, 2, 1)}, at_rest, {0}},
      {"only gone ones are newer", {Sized(1, 1, 0), Sized(3, 2, 0)}, at_rest, {}},
      {"an older version serves again", {Sized(1, 1, 1), Sized(3, 2, 0)}, at_rest, {}},
      {"a load wants it", {Sized(1, 1, 0), Sized(3, 2, 1)}, std::set<size_t>{1, 3}, {}},
      {"loads want others", {Sized(1, 1, 0), Sized(3, 1, 0)}, std::set<size_t>{3}, {0}},
      {"a load without tables", {Sized(1, 1, 0), Sized(3, 2, 1)}, std::set<size_t>{}, {0}},
  };
  for (const Case& row : cases) {
    EXPECT_EQ(ChooseUseless(row.tables, {{"m", row.wished_bytes}}), row.useless) << row.situation;
    EXPECT_EQ(ChooseUseless(row.tables, {{"n", row.wished_bytes}}).size(),
              std::count_if(row.tables.begin(), row.tables.end(),
                            [](const TableState& table) { return table.holder_count == 0; }))
        << "an owner that is not known";
  }
}

}  // namespace
}  // namespace millpond::memory
