#include "native/memory/page_pins.h"

#include <algorithm>

namespace millpond::memory {

size_t PinnedPieces::stuck_end() const {
  size_t end = 0;
  for (const StuckPiece& piece : stuck_) {
    if (!piece.kept.expired()) end = std::max(end, piece.end);
  }
  return end;
}

bool PinnedPieces::PinNext(size_t end, const std::shared_ptr<PagePinner>& pinner) {
  const size_t begin = bytes();
  const size_t piece_end = std::min(begin + kPieceBytes, end);
  if (stuck_end() > 0 || begin >= piece_end ||
      !pinner->Pin(start_ + begin, piece_end - begin, Keep(piece_end))) {
    return false;
  }
  pieces_.push_back({begin, piece_end, pinner});
  return true;
}

bool PinnedPieces::CutBack(size_t end) {
  while (bytes() > end) {
    const Piece last = std::move(pieces_.back());
    pieces_.pop_back();
    static_cast<void>(
        last.pinner->Unpin(start_ + last.begin, last.end - last.begin, Keep(last.end)));
  }
  return stuck_end() <= end;
}

// Returns what a pinner has as long as it may change the pins of the piece that ends there: the
// piece is stuck until it is dropped.
std::shared_ptr<const void> PinnedPieces::Keep(size_t end) {
  const auto is_over = [](const StuckPiece& piece) { return piece.kept.expired(); };
  stuck_.erase(std::remove_if(stuck_.begin(), stuck_.end(), is_over), stuck_.end());
  const auto kept = std::make_shared<const std::shared_ptr<const void>>(pages_);
  stuck_.push_back({end, kept});
  return kept;
}

}  // namespace millpond::memory
