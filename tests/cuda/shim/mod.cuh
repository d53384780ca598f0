// A program's header comes before what asks for it.
#pragma once
