#pragma once

#include <cstddef>
#include <memory>
#include <utility>
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
  // or if too much memory is pinned. It has dropped `kept`, which keeps the pages, at the return,
  // unless a driver hangs: then the pages may be pinned until it drops it.
  virtual bool Pin(std::byte* start, size_t bytes, std::shared_ptr<const void> kept) = 0;
  // Ends what Pin of exactly this range began, and drops `kept`, which keeps the pages: no device
  // reads the range then. Returns false if `kept` is still there at the return, as of a driver that
  // hangs. It is dropped later then, on any thread, or never. The pages must neither move nor be
  // unmapped before.
  [[nodiscard]] virtual bool Unpin(std::byte* start, size_t bytes,
                                   std::shared_ptr<const void> kept) = 0;
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

  // Whoever is late to pin or unpin a piece has `pages` until then.
  PinnedPieces(std::byte* start, std::shared_ptr<const void> pages)
      : start_(start), pages_(std::move(pages)) {}
  ~PinnedPieces() { static_cast<void>(CutBack(0)); }
  PinnedPieces(const PinnedPieces&) = delete;
  PinnedPieces& operator=(const PinnedPieces&) = delete;

  size_t bytes() const { return pieces_.empty() ? 0 : pieces_.back().end; }
  // The end of the last piece that is still to be unpinned, also of a pin that was late; 0 if there
  // is none. What lies before it must stay mapped.
  size_t stuck_end() const;
  // Pins the next piece, up to `end` at most. Returns false if the pinner refuses, or if a piece is
  // still to be unpinned.
  bool PinNext(size_t end, const std::shared_ptr<PagePinner>& pinner);
  // Unpins all pieces that reach beyond `end`, the last one first. Returns false if what lies there
  // must stay, because one of them is still to be unpinned.
  [[nodiscard]] bool CutBack(size_t end);

 private:
  struct Piece {
    size_t begin;
    size_t end;
    std::shared_ptr<PagePinner> pinner;
  };
  // A piece that its pinner is late to pin or unpin, or never unpins.
  struct StuckPiece {
    size_t end;
    std::weak_ptr<const void> kept;  // by the pinner
  };

  std::shared_ptr<const void> Keep(size_t end);

  std::byte* const start_;
  const std::shared_ptr<const void> pages_;
  std::vector<Piece> pieces_;
  std::vector<StuckPiece> stuck_;  // and pieces that are not stuck any more
};

}  // namespace millpond::memory
