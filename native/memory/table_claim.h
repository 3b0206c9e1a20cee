#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/memory/page_pins.h"
#include "native/memory/stored_table.h"
#include "native/memory/table_choice.h"

namespace millpond::memory {

class CopyAhead;
class TableStore;

// The store of the tables, as claims see it (TableStore). Any thread.
class TableHome {
 public:
  virtual ~TableHome() = default;
  virtual void Release(StoredTable* table, const TableHolder& holder) = 0;
  // The table has these contents and the rows of its log from now on.
  virtual void SetContents(StoredTable* table, const std::string& contents) = 0;
  // Pins tables for devices; null if nothing does.
  virtual std::shared_ptr<PagePinner> pinner() const = 0;
};

// Keeps a table from being written to. Any thread may end it.
class TableHold {
 public:
  TableHold(std::shared_ptr<TableHome> home, StoredTable* table, const TableHolder& holder)
      : home_(std::move(home)), table_(table), holder_(holder) {}
  ~TableHold() { home_->Release(table_, holder_); }
  TableHold(const TableHold&) = delete;
  TableHold& operator=(const TableHold&) = delete;

 private:
  friend class TableStore;

  const std::shared_ptr<TableHome> home_;
  StoredTable* const table_;
  TableHolder holder_;  // under the store's mutex
};

// The table of one load, until the load ends. Thread: the loader.
class TableClaim {
 public:
  ~TableClaim();
  TableClaim(const TableClaim&) = delete;
  TableClaim& operator=(const TableClaim&) = delete;

  TableUse use() const { return choice_.use; }
  ReadReason reason() const { return choice_.reason; }
  std::byte* data() const { return table_->slab->start(); }
  size_t bytes() const { return bytes_; }
  // True if this load may write to the table.
  bool is_writable() const { return choice_.use != TableUse::kShare; }
  // True if the bytes are in the table already, but for the changed rows.
  bool is_in_place() const { return use() == TableUse::kShare || use() == TableUse::kUndo; }
  // True if the rows come from another table, which stays as it is until EndOverwrite.
  bool copies() const { return source_ != nullptr; }
  // The bytes that are to be read, or copied from the other table.
  size_t bytes_to_fill() const { return is_in_place() ? 0 : bytes_ - copied_bytes_; }
  // The bytes of the table that need no fresh memory.
  size_t resident_bytes() const { return resident_bytes_; }
  // The table stays as it is as long as this lives, or what has a copy of it.
  std::shared_ptr<const TableHold> hold() const { return hold_; }

  // Declares that the whole table will be written, before its first byte is: from now on the table
  // has the rows of this load, and an empty log. Its contents are unknown until EndOverwrite.
  void BeginOverwrite();
  // Copies the next `count` bytes of the other table, or all that are left. Returns how many these
  // are. After BeginOverwrite.
  size_t CopyNext(size_t count);
  // Declares that the table has the bytes that were wished for: they were read and verified, or
  // copied and undone. Lets go of the other table.
  void EndOverwrite();
  // The rows that are not undone yet.
  size_t changed_row_count() const { return copies() ? source_rows_left_ : table_->log_count; }
  // Undoes the last `count` changes, or all that are left. The log may be of a load that read the
  // same bytes as rows of another size.
  void UndoRows(size_t count);
  // Declares that the rows `ids` will be written, and keeps their bytes. Ids that are out of range
  // are left out, because no kernel writes to them. Returns false if the log has no room: Commit
  // then leaves the contents unknown.
  template <typename Id>
  bool LogRows(const Id* ids, size_t count);
  // Declares that the table will be written in a way that cannot be undone.
  void LoseContents();
  // The identity of the bytes that the load wants, but for the rows that were written over.
  const std::string& contents() const { return contents_; }
  // The rows whose bytes are not those of contents(), ascending and each once. Returns nullopt as
  // long as other bytes may differ too.
  std::optional<std::vector<int64_t>> ChangedRows() const;
  // Pins the table for devices that copy from it, if the pool pins any memory (SlabPool::PinWith).
  // For a writable table, because only this load has it. Takes long if it is not pinned yet.
  void Pin();
  // Ends the writing: the contents are known as what was wished for, and the logged rows. The end
  // of the claim does the same.
  void Commit();

 private:
  friend class CopyAhead;
  friend class TableStore;

  // A table that the store has chosen, and its contents, which it has no more.
  struct Claimed {
    TableChoice choice;
    StoredTable* table = nullptr;  // null as long as its memory is to be made
    std::shared_ptr<TableHold> hold;
    std::string former_contents;
    const StoredTable* source = nullptr;  // null if no table is copied
    std::shared_ptr<TableHold> source_hold;
  };

  TableClaim(std::shared_ptr<TableHome> home, Claimed claimed, const TableWish& wish,
             size_t row_bytes);

  // Begins an empty log of the rows of this load.
  void BeginLog();
  // Gives the place of an entry in the log of `table`.
  std::byte* EntryOf(const StoredTable& table, size_t index) const;

  const std::shared_ptr<TableHome> home_;
  StoredTable* const table_;
  const TableChoice choice_;
  const std::string contents_;  // that the load wants
  const size_t bytes_;
  const size_t row_bytes_;
  const size_t row_count_;
  const std::string former_contents_;  // to be put back if nothing is written
  size_t resident_bytes_ = 0;
  bool has_written_ = false;
  bool is_overwriting_ = false;
  bool has_lost_contents_ = false;
  std::shared_ptr<TableHold> hold_;
  const StoredTable* source_;  // null if there is none
  size_t copied_bytes_ = 0;
  size_t source_rows_left_;  // of its changed rows, not undone yet in the copy
  std::shared_ptr<TableHold> source_hold_;
};

template <typename Id>
bool TableClaim::LogRows(const Id* ids, size_t count) {
  constexpr size_t kRowsAhead = 16;
  has_written_ = true;
  if (table_->log_count == 0) BeginLog();
  for (size_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count) {
      const auto ahead = static_cast<uint64_t>(static_cast<int64_t>(ids[i + kRowsAhead]));
      if (ahead < row_count_) __builtin_prefetch(data() + ahead * table_->row_bytes);
    }
    const auto id = static_cast<int64_t>(ids[i]);
    if (static_cast<uint64_t>(id) >= row_count_) continue;
    if (table_->log_count == table_->log_capacity) {
      has_lost_contents_ = true;
      return false;
    }
    std::byte* const entry = EntryOf(*table_, table_->log_count++);
    std::memcpy(entry, &id, sizeof(id));
    std::memcpy(entry + sizeof(id), data() + static_cast<size_t>(id) * table_->row_bytes,
                table_->row_bytes);
  }
  return true;
}

}  // namespace millpond::memory
