// Everything public. Fused attention kernels from a line of text; see docs/embedding.md.
#pragma once

#include "flexc/compile.h"
#include "flexc/kernel.h"
#include "flexc/mask.h"
#include "flexc/options.h"
#include "flexc/result.h"
#include "flexc/types.h"
