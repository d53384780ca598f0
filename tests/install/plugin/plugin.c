/* A shared library of somebody who links flexc into it: its own function is all that it shows. */
#include <flexc/flexc_c.h>

const char* plugin_version(void) {
    flexc_signature* signature = NULL;
    flexc_check("score", NULL, &signature, NULL); /* brings the whole of flexc in */
    flexc_signature_free(signature);
    return flexc_version();
}
