#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace millpond::servable {

// A bounded queue of byte records, from threads that must not wait to one reader that may be slow.
//
// Theory of operation. The records lie one after the other in a ring of memory. A writer takes its
// place by moving `end_`, writes its record there, and marks it as complete. The reader reads
// complete records in the order of their places, and removes them once it has what it needs of
// them. It fills each place with zeros before it moves `begin_`, so that a place that is taken
// again reads as incomplete. Neither side takes a lock or uses the heap, so a reader of idle
// priority that loses its core delays no writer. A writer that loses its core delays only the
// reader.
//
// Thread: Begin and Commit: any number at once. FindEnd, VisitUpTo and RemoveUpTo: one reader.
// Cost: Begin is one compare-and-swap. The ring is allocated at once; its pages become resident as
// records reach them, and stay.
class RecordQueue {
 public:
  // Makes a queue of `bytes_max`, rounded up to a power of two. It is all the memory that records
  // take.
  explicit RecordQueue(size_t bytes_max);
  RecordQueue(const RecordQueue&) = delete;
  RecordQueue& operator=(const RecordQueue&) = delete;

  // The largest record: a quarter of the queue, so that one record never takes all of it.
  size_t record_bytes_max() const { return capacity_ / 4; }

  // Returns room for a record of `bytes`, which the caller writes and then passes to Commit.
  // Returns null if the record is too large, or if the queue has too little room.
  char* Begin(size_t bytes);
  // Gives the record to the reader. `record` is from Begin(bytes).
  void Commit(char* record, size_t bytes);

  // The reader's side, in three steps, so that a reader that fails midway loses no record.

  // Finds the end of the complete records at the front of the queue: the position behind the first
  // that brings them to `bytes_max` with their heads, or before the first incomplete one.
  uint64_t FindEnd(size_t bytes_max) const;
  // Calls `visit(record)` for each record up to `end`, in order. They stay in the queue.
  template <typename Visit>
  void VisitUpTo(uint64_t end, Visit visit) const {
    for (uint64_t begin = begin_.load(std::memory_order_relaxed); begin < end;) {
      const uint64_t* const head = HeadAt(begin);
      const size_t bytes = *head >> kKindBits;
      if ((*head & kRecord) != 0) visit(std::string_view(BodyOf(head), bytes));
      begin += EntryBytes(bytes);
    }
  }
  // Removes the records up to `end`. It cannot fail.
  void RemoveUpTo(uint64_t end);

  // The bytes of records that are not removed yet, with their heads and those that are being
  // written.
  size_t used_bytes() const;

 private:
  struct Free {
    void operator()(uint64_t* words) const { std::free(words); }
  };

  // An entry is a head of one word and a body. The head is kIncomplete, or the number of bytes of
  // the body above the kind: a record, or padding up to the end of the ring.
  static constexpr uint64_t kIncomplete = 0;
  static constexpr uint64_t kRecord = 1;
  static constexpr uint64_t kPadding = 2;
  static constexpr int kKindBits = 2;

  static size_t EntryBytes(size_t body_bytes) {
    return sizeof(uint64_t) + (body_bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * 8;
  }
  static char* BodyOf(uint64_t* head) { return reinterpret_cast<char*>(head + 1); }
  static const char* BodyOf(const uint64_t* head) {
    return reinterpret_cast<const char*>(head + 1);
  }
  uint64_t* HeadAt(uint64_t position) const {
    return ring_.get() + (position & (capacity_ - 1)) / sizeof(uint64_t);
  }

  const size_t capacity_;  // a power of two
  const std::unique_ptr<uint64_t, Free> ring_;
  // Positions count all bytes since the start; the place in the ring is the position modulo
  // capacity_. A writer reads begin_ before it writes, so that it sees the reader's zeros.
  alignas(64) std::atomic<uint64_t> end_{0};
  alignas(64) std::atomic<uint64_t> begin_{0};
};

}  // namespace millpond::servable
