#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace millpond::memory {

// Pins memory of this process for devices that copy from it. A pinned page keeps its place in the
// machine's memory, and is not swapped. If it were unmapped, given back or moved to another address
// while it is pinned, a device would go on reading the old one.
//
// Thread: any.
class PagePinner {
 public:
  virtual ~PagePinner() = default;
  // Pins whole pages, and makes them resident. Returns false, and pins none, if the system refuses
  // or if too much memory is pinned.
  virtual bool Pin(std::byte* start, size_t bytes) = 0;
  // Ends what Pin of exactly this range began: no device reads the range then. Returns false if one
  // may read it for ever, as of a driver that hangs. The pages must neither move nor be unmapped
  // then.
  [[nodiscard]] virtual bool Unpin(std::byte* start, size_t bytes) = 0;
};

// The pinned memory of a slab, which are its first bytes. It is pinned and unpinned in pieces, each
// by a call of its own, because a driver stops all runs for the length of a call.
//
// Thread: the owner of the slab. Owner: the slab, which cuts it back before it changes a mapping.
class PinnedPieces {
 public:
  // Five huge pages. To pin 500 MB at once took 40 ms on an H200, a piece takes 0.9 ms, and one of
  // 4 MiB 0.5 ms. A copy to a device ends with its piece, and each copy has a cost of its own.
  static constexpr size_t kPieceBytes = size_t{10} << 20U;

  explicit PinnedPieces(std::byte* start) : start_(start) {}
  ~PinnedPieces() { static_cast<void>(CutBack(0)); }
  PinnedPieces(const PinnedPieces&) = delete;
  PinnedPieces& operator=(const PinnedPieces&) = delete;

  size_t bytes() const { return pieces_.empty() ? 0 : pieces_.back().end; }
  // The end of the last piece that could not be unpinned; 0 if there is none. What lies before it
  // must stay mapped to the process's end.
  size_t stuck_end() const { return stuck_end_; }
  // Pins the next piece, up to `end` at most. Returns false if the pinner refuses, and after a
  // piece could not be unpinned.
  bool PinNext(size_t end, const std::shared_ptr<PagePinner>& pinner);
  // Unpins all pieces that reach beyond `end`, the last one first. Returns false if what lies there
  // must stay, because one of them could not be unpinned, now or before.
  [[nodiscard]] bool CutBack(size_t end);

 private:
  struct Piece {
    size_t begin;
    size_t end;
    std::shared_ptr<PagePinner> pinner;
  };

  std::byte* const start_;
  std::vector<Piece> pieces_;
  size_t stuck_end_ = 0;
};

}  // namespace millpond::memory
