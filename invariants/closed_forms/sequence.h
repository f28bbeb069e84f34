// The order and the live bytes of one step: closed_forms.h, sections THE STEP and LIVE
// BYTES, carried out literally. Private to closed_forms; see ClosedForms::Sequence.
#ifndef INVARIANTS_CLOSED_FORMS_SEQUENCE_H_
#define INVARIANTS_CLOSED_FORMS_SEQUENCE_H_

#include <vector>

#include "invariants/closed_forms/closed_forms.h"
#include "invariants/closed_forms/layout_forms.h"
#include "invariants/run_description/run_description.h"

namespace shardproof {

std::vector<ExpectedItem> SequenceOf(const RunDescription& run, const LayoutForms& layouts);

}  // namespace shardproof

#endif  // INVARIANTS_CLOSED_FORMS_SEQUENCE_H_
