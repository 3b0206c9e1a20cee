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
  if (stuck_end() > 0 || begin >= piece_end || !pinner->Pin(start_ + begin, piece_end - begin))
    return false;
  pieces_.push_back({begin, piece_end, pinner});
  return true;
}

bool PinnedPieces::CutBack(size_t end) {
  while (bytes() > end) {
    const Piece last = std::move(pieces_.back());
    pieces_.pop_back();
    auto kept = std::make_shared<const std::shared_ptr<const void>>(pages_);
    StuckPiece stuck{last.end, kept};
    const size_t piece_bytes = last.end - last.begin;
    if (!last.pinner->Unpin(start_ + last.begin, piece_bytes, std::move(kept))) {
      stuck_.push_back(std::move(stuck));
    }
  }
  const auto is_over = [](const StuckPiece& piece) { return piece.kept.expired(); };
  stuck_.erase(std::remove_if(stuck_.begin(), stuck_.end(), is_over), stuck_.end());
  return stuck_end() <= end;
}

}  // namespace millpond::memory
